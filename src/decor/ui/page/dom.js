// Elements, and the one tooltip. All text goes through text nodes, so no text can become markup.

const SVG = 'http://www.w3.org/2000/svg';

function byId(id) { return document.getElementById(id); }

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'paint') Object.assign(node.style, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (
    child instanceof Node ? child : document.createTextNode(String(child)))));
  return node;
}

function el(name, attributes, ...children) { return filled(document.createElement(name), attributes, children); }

function svg(name, attributes, ...children) { return filled(document.createElementNS(SVG, name), attributes, children); }

function showTip(x, y, head, rows, foot) {
  const tip = byId('tip');
  tip.replaceChildren(el('div', { class: 'head' }, head), ...rows.map((row) => el('div', { class: 'row' },
    row.colour ? el('i', { paint: { background: row.colour } }) : null, el('span', null, row.name), el('b', null, row.text))),
  ...(foot || []).map((line) => el('div', null, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > window.innerWidth - 8 ? x - 16 - box.width : x + 16;
  const top = Math.min(Math.max(8, y - box.height / 2), window.innerHeight - box.height - 8);
  tip.style.transform = `translate(${Math.round(Math.max(8, Math.min(left, window.innerWidth - box.width - 8)))}px, ${Math.round(top)}px)`;
}

function hideTip() { byId('tip').hidden = true; }
