// A picture (SVG or HTML made and escaped by the kernel), a line that says what is in focus, and the same as text.
// Keys: Tab enters the picture, arrows go to the neighbour in that direction, Enter goes from a node to its cells, Escape back,
// Home and End to the first and last node, or cell of a node.

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function element(tag, css, parent) {
  const made = document.createElement(tag);
  if (css) made.className = css;
  parent.append(made);
  return made;
}

const named = (item) => item.querySelector(":scope > title")?.textContent ?? "";
const isCell = (item) => item.parentElement.closest("[data-k]") !== null;

function middle(item) {
  const box = item.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

// The nearest of `items` that lies in direction (dx, dy); being off the line counts double.
function neighbour(from, items, [dx, dy]) {
  const [x, y] = middle(from);
  let best = null, least = Infinity;
  for (const item of items) {
    const [u, v] = middle(item);
    const along = (u - x) * dx + (v - y) * dy, across = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
    if (item === from || along < 1) continue;
    const cost = along + 2 * across;
    if (cost < least) [best, least] = [item, cost];
  }
  return best;
}

// Pictures have one element a line, between the lines of <svg> and </svg>. Replaces those that differ; false if that is not possible.
function patch(svg, before, after) {
  const old = before.split("\n"), fresh = after.split("\n");
  if (svg?.localName !== "svg" || old.length !== fresh.length || old[0] !== fresh[0]) return false;
  if (svg.children.length !== fresh.length - 2) return false;
  const children = [...svg.children];
  for (let line = 1; line < fresh.length - 1; line++) if (old[line] !== fresh[line]) children[line - 1].outerHTML = fresh[line];
  return true;
}

function render({ model, el }) {
  el.classList.add("ol-panel");
  // JupyterLab acts on arrow keys before the page sees them; this attribute keeps them for the picture.
  el.dataset.lmSuppressShortcuts = "true";
  const picture = element("div", "ol-picture", el);
  const said = element("div", "ol-said", el);
  said.setAttribute("role", "status");
  said.setAttribute("aria-live", "polite");
  const details = element("details", "", el);
  const summary = element("summary", "", details);
  const twin = element("pre", "", details);
  twin.tabIndex = 0;
  let current = null, shown = "";

  const items = () => [...picture.querySelectorAll("[data-k]")];
  const find = (key) => (key === null ? null : picture.querySelector(`[data-k="${CSS.escape(key)}"]`));

  function hold(item, focus) {
    const old = find(current);
    if (old) old.setAttribute("tabindex", "-1");
    current = item.dataset.k;
    item.setAttribute("tabindex", "0");
    if (focus) item.focus({ preventScroll: false });
  }

  function draw() {
    const inside = picture.contains(document.activeElement), html = model.get("html");
    if (!patch(picture.firstElementChild, shown, html)) picture.innerHTML = html;
    shown = html;
    const item = find(current) ?? picture.querySelector("[data-k]");
    if (!item) return;
    hold(item, inside);
    if (inside) said.textContent = named(item);
  }

  function write() {
    summary.textContent = model.get("title") ? `${model.get("title")} as text` : "As text";
    twin.setAttribute("aria-label", summary.textContent);
    details.hidden = !model.get("text");
    if (twin.textContent !== model.get("text")) twin.textContent = model.get("text");
  }

  picture.addEventListener("focusin", (event) => {
    const item = event.target.closest("[data-k]");
    if (!item) return;
    if (item.dataset.k !== current) hold(item, false);
    said.textContent = named(item);
  });
  picture.addEventListener("keydown", (event) => {
    const item = event.target.closest("[data-k]");
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    const level = () => items().filter((other) => isCell(other) === isCell(item));
    const peers = () => level().filter((other) => other.parentElement === item.parentElement);
    let next = null;
    if (STEPS[event.key]) next = neighbour(item, level(), STEPS[event.key]);
    else if (event.key === "Home") next = peers()[0];
    else if (event.key === "End") next = peers().at(-1);
    else if (event.key === "Enter") next = item.querySelector("[data-k]");
    else if (event.key === "Escape") next = item.parentElement.closest("[data-k]");
    else return;
    event.preventDefault();
    event.stopPropagation();
    if (next) hold(next, true);
  });
  model.on("change:html", draw);
  model.on("change:text", write);
  model.on("change:title", write);
  draw();
  write();
  return () => {
    model.off("change:html", draw);
    model.off("change:text", write);
    model.off("change:title", write);
  };
}

export default { render };
