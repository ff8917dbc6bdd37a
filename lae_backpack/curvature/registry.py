"""Which rule belongs to which layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.nn import Module

from lae_backpack.curvature.rules.base import DiagRule
from lae_backpack.curvature.rules.loss_rule import LossRule

Rule = DiagRule | LossRule
RuleOrClass = TypeVar("RuleOrClass")

_RULES: dict[type[Module], Rule] = {}


def register_rule(
    *layers: type[Module], overwrite: bool = False
) -> Callable[[RuleOrClass], RuleOrClass]:
    """Give layers (and their subclasses) a rule.

    Args:
        *layers: Module classes.
        overwrite: Replace a rule that is there already.

    Returns:
        A decorator for a rule class; it takes an instance of one, too.

    Raises:
        TypeError: If something given is not a module class.
    """
    for layer in layers:
        if not (isinstance(layer, type) and issubclass(layer, Module)):
            raise TypeError(
                f"register_rule takes subclasses of torch.nn.Module, got {layer!r}."
            )

    def register(rule: RuleOrClass) -> RuleOrClass:
        instance = _complete(rule() if isinstance(rule, type) else rule)
        for layer in layers:
            if layer in _RULES and not overwrite:
                raise ValueError(
                    f"{layer.__name__} has the rule {type(_RULES[layer]).__name__} "
                    f"already, got {type(instance).__name__}. Pass overwrite=True to "
                    "replace it."
                )
        _RULES.update(dict.fromkeys(layers, instance))
        return rule

    return register


def _complete(rule: object) -> Rule:
    if isinstance(rule, LossRule):
        return rule
    if not isinstance(rule, DiagRule):
        raise TypeError(
            f"A rule is a DiagRule or a LossRule, got {rule!r}. Subclass one of them."
        )
    missing = [name for name in rule.params if not hasattr(rule, name)]
    if missing:
        raise TypeError(
            f"{type(rule).__name__} lists the parameters {list(rule.params)} but has "
            f"no method {missing[0]!r}. Write {missing[0]}(self, module, x, diag)."
        )
    return rule


def find_rule(module: Module) -> Rule | None:
    """Look up a module's rule.

    Args:
        module: The module.

    Returns:
        The rule of its class, or of the nearest base class that has one.
    """
    cls = registered_class(module)
    return None if cls is None else _RULES[cls]


def registered_class(module: Module) -> type[Module] | None:
    """Look up under which class a module's rule stands.

    Args:
        module: The module.

    Returns:
        The first class of its MRO that has a rule.
    """
    own = type(module)
    if own in _RULES:  # nearly always, and a pass asks for every call
        return own
    return next((cls for cls in own.__mro__ if cls in _RULES), None)


def find_family(layer: type[Module]) -> str:
    """In which family of Jacobians a registered layer belongs.

    Args:
        layer: A module class that has a rule.

    Returns:
        The name of the file in which its rule is written.
    """
    return type(_RULES[layer]).__module__.rpartition(".")[2]


def supported_layers() -> tuple[type[Module], ...]:
    """All layers and losses that have a rule.

    Returns:
        Module classes, sorted by name.
    """
    return tuple(sorted(_RULES, key=lambda cls: (cls.__name__, cls.__module__)))
