"use strict";
// Moves over the latent map and shows what was decoded there before; no server needed.
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const map = document.getElementById("map");
  const where = document.getElementById("where");
  const panes = { mean: document.getElementById("mean"), deviation: document.getElementById("deviation") };
  const [height, width] = data.tile;
  const [left, right, bottom, top] = data.extent;
  const last = data.size - 1;
  const position = { column: Math.round(last / 2), row: Math.round(last / 2) }; // row 0 at the bottom
  const pictures = {};

  const clamp = (value) => Math.min(last, Math.max(0, value));
  const code = ({ column, row }) => [left + ((right - left) * column) / last, bottom + ((top - bottom) * row) / last];
  const toCanvas = ([x, y]) => [((x - left) / (right - left)) * map.width, (1 - (y - bottom) / (top - bottom)) * map.height];

  function load(name) {
    return new Promise((resolve, reject) => {
      const picture = new Image();
      picture.onload = () => resolve((pictures[name] = picture));
      picture.onerror = () => reject(new Error(`${name} cannot be shown`));
      picture.src = data[name];
    });
  }

  function drawMap() {
    const context = map.getContext("2d");
    const unit = map.width / 420;
    context.imageSmoothingEnabled = true;
    // From the middle of the first pixel to that of the last: there the grid's points are.
    context.drawImage(pictures.background, 0.5, 0.5, last, last, 0, 0, map.width, map.height);
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.font = `${11 * unit}px sans-serif`;
    data.codes.forEach((each, i) => {
      const [x, y] = toCanvas(each);
      const text = String(data.labels[i]);
      context.lineWidth = 2.5 * unit;
      context.strokeStyle = "rgba(0, 0, 0, .75)";
      context.strokeText(text, x, y);
      context.fillStyle = "white";
      context.fillText(text, x, y);
    });
    const [x, y] = toCanvas(code(position));
    for (const [line, colour] of [[6, "white"], [3, "black"]]) {
      context.lineWidth = line * unit;
      context.strokeStyle = colour;
      context.beginPath();
      context.moveTo(x - 15 * unit, y);
      context.lineTo(x + 15 * unit, y);
      context.moveTo(x, y - 15 * unit);
      context.lineTo(x, y + 15 * unit);
      context.stroke();
    }
  }

  function drawPane(canvas, picture) {
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(
      picture, position.column * width, position.row * height, width, height, 0, 0, canvas.width, canvas.height
    );
  }

  function show() {
    drawMap();
    drawPane(panes.mean, pictures.means);
    drawPane(panes.deviation, pictures.deviations);
    const at = position.row * data.size + position.column;
    const [x, y] = code(position).map((value) => value.toFixed(2));
    where.textContent =
      `Code (${x}, ${y}): standard deviation ${data.uncertainty[at]} on average, ` +
      `${data.brightest[at]} at the brightest pixel. ` +
      `The nearest test image is of class ${data.classNames[data.nearest[at]]}.`;
  }

  function moveTo(column, row) {
    position.column = clamp(Math.round(column));
    position.row = clamp(Math.round(row));
    show();
  }

  const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  map.addEventListener("keydown", (event) => {
    if (event.key === "Home") {
      moveTo(last / 2, last / 2);
    } else if (event.key in STEPS && !event.altKey && !event.ctrlKey && !event.metaKey) {
      const [across, up] = STEPS[event.key];
      const step = event.shiftKey ? 5 : 1;
      moveTo(position.column + step * across, position.row + step * up);
    } else {
      return;
    }
    event.preventDefault(); // the page must not scroll
  });

  function follow(event) {
    const box = map.getBoundingClientRect();
    moveTo((last * (event.clientX - box.left)) / box.width, last * (1 - (event.clientY - box.top) / box.height));
  }
  map.addEventListener("pointerdown", follow);
  map.addEventListener("pointermove", follow); // of a mouse, a pen, or a finger that is down

  Promise.all(["background", "means", "deviations"].map(load)).then(
    () => { show(); document.documentElement.dataset.explorer = "ready"; },
    (error) => { where.textContent = `The explorer does not work here: ${error.message}.`; }
  );
})();
