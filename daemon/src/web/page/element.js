// Elements of the page. Texts from the daemon become text nodes, never markup.

function filled(created, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false)
      created.setAttribute(name, value === true ? "" : value);
  }
  created.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return created;
}

/** An HTML element. Children are elements, texts, arrays of them, or null. */
export const element = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A horizontal bar that is filled to a fraction. The page's security policy forbids style attributes, not properties. */
export function bar(fraction, label) {
  const inner = element("span", {});
  inner.style.width = `${Math.min(Math.max(fraction, 0), 1) * 100}%`;
  return element("span", { class: "bar", role: "img", "aria-label": label }, inner);
}

/** The state of a job. */
export const badge = (state) => element("span", { class: `state ${state}` }, state);
