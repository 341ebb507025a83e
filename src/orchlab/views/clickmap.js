// A picture whose parts can be pressed: a click, Enter or the space bar on an element with data-k and role="button" tells the kernel its
// key. All the rest (arrow keys, what is in focus, the text twin) is panel.js, which stands before this in one module.

function clickable({ model, el }) {
  const end = render({ model, el });
  const press = (event) => {
    const item = event.target.closest?.("[data-k][role=button]");
    if (!item || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    item.focus({ preventScroll: true });
    if (!event.repeat) model.send({ press: item.dataset.k });
  };
  // What was said of a place is no longer true when the picture changes while the reader is elsewhere.
  const forget = () => {
    if (!el.contains(document.activeElement)) el.querySelector(".ol-said").textContent = "";
  };
  model.on("change:html", forget);
  el.addEventListener("click", press);
  // Before panel.js, for which Enter is the way into a node.
  el.addEventListener("keydown", press, true);
  return () => {
    model.off("change:html", forget);
    el.removeEventListener("click", press);
    el.removeEventListener("keydown", press, true);
    end();
  };
}

export default { render: clickable };
