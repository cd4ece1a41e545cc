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

function colour(method) { return `var(--method-${method})`; }

// marks of the same visual weight around (x, y)
function markPath(shape, x, y, size) {
  const r = size;
  if (shape === 'square') return `M${x - r * 0.89},${y - r * 0.89}h${r * 1.78}v${r * 1.78}h${-r * 1.78}z`;
  if (shape === 'diamond') return `M${x},${y - r * 1.3}l${r * 1.3},${r * 1.3}l${-r * 1.3},${r * 1.3}l${-r * 1.3},${-r * 1.3}z`;
  if (shape === 'triangle') return `M${x},${y - r * 1.25}l${r * 1.2},${r * 2.1}h${-r * 2.4}z`;
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`;
}

function swatch(method) {
  const kind = page.methods[method];
  return svg('svg', { width: 26, height: 12, viewBox: '0 0 26 12', 'aria-hidden': 'true' },
    svg('line', { x1: 1, x2: 25, y1: 6, y2: 6, 'stroke-width': 2.25, 'stroke-dasharray': kind.dashed ? '5 4' : null, paint: { stroke: colour(method) } }),
    kind.dashed ? null : svg('path', { d: markPath(kind.mark, 13, 6, 4), paint: { fill: colour(method) } }));
}

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
