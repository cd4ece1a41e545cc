// The graph of a federation: a shape, a sign and a colour for each state of a user, and a ring for its steps.

const peers = { key: '', names: [], at: [], radius: 0, nodes: [], edges: [], focus: 0 };

// states, in the order of the legend: an outline around (0, 0) of radius 1, and a sign in it that is filled or drawn as a line
const OUTLINES = {
  circle: 'M1,0A1,1 0 1 1 -1,0A1,1 0 1 1 1,0Z',
  square: 'M-.58,-.88H.58A.3,.3 0 0 1 .88,-.58V.58A.3,.3 0 0 1 .58,.88H-.58A.3,.3 0 0 1 -.88,.58V-.58A.3,.3 0 0 1 -.58,-.88Z',
  diamond: 'M0,-1.14L1.14,0L0,1.14L-1.14,0Z',
  hexagon: 'M-1.06,0L-.53,-.92H.53L1.06,0L.53,.92H-.53Z',
  octagon: 'M-.41,-.99H.41L.99,-.41V.41L.41,.99H-.41L-.99,.41V-.41Z',
};
const SIGNS = {
  working: { outline: 'circle', fill: 'M-.27,-.46L.5,0L-.27,.46Z' },
  waiting: { outline: 'square', fill: 'M-.4,-.44H-.12V.44H-.4ZM.12,-.44H.4V.44H.12Z' },
  behind: { outline: 'diamond', line: 'M0,-.38L-.4,0L0,.38M.42,-.38L.02,0L.42,.38' },
  finished: { outline: 'hexagon', line: 'M-.42,.02L-.1,.34L.44,-.32' },
  stopped: { outline: 'octagon', fill: 'M-.38,-.38H.38V.38H-.38Z' },
  unreachable: { outline: 'octagon', line: 'M-.36,-.36L.36,.36M.36,-.36L-.36,.36' },
  unasked: { outline: 'circle', line: 'M-.26,-.22A.27,.27 0 1 1 .1,.06Q0,.12 0,.24M0,.48V.5' },
};
const EDGE_NAMES = { connected: 'connected', broken: 'not connected', done: 'no longer needed', unknown: 'not known' };

function signOf(state, radius) {
  const { outline, fill, line } = SIGNS[state];
  return svg('g', { transform: `scale(${radius})` }, svg('path', { class: 'outline', d: OUTLINES[outline] }), svg('path', { class: fill ? 'sign filled' : 'sign', d: fill || line }));
}

function icon(state) {
  return svg('svg', { class: `icon s-${state}`, viewBox: '-1.25 -1.25 2.5 2.5', 'aria-hidden': 'true' }, signOf(state, 1));
}

// how much room a user needs, with its name and steps below it; of very many only the shape is drawn
function cellOf(count) {
  if (count > 100) return { radius: 8, width: 30, height: 30, named: false };
  const [radius, width] = count <= 12 ? [21, 132] : count <= 24 ? [17, 106] : [13, 84];
  return { radius, width, height: 2 * radius + 60, named: true };
}

// places in pixels, in proportions that may be stretched to fill the width
function spread(places, cell, width, height) {
  const range = (k) => [Math.min(...places.map((p) => p[k])), Math.max(...places.map((p) => p[k]))];
  const [[x0, x1], [y0, y1]] = [range(0), range(1)];
  const across = (width - cell.width) / (x1 - x0 || 1e-9);
  const down = (height - cell.height) / (y1 - y0 || 1e-9);
  const [sx, sy] = [Math.min(across, 2.2 * down), Math.min(down, 2.2 * across)];
  return places.map(([x, y]) => [width / 2 + (x - (x0 + x1) / 2) * sx, height / 2 - (y - (y0 + y1) / 2) * sy]);
}

// moves users apart until no two cells overlap: in how many turns; Infinity: there was not room enough
function untangle(at, cell, width, height) {
  const inside = (value, room, all) => Math.min(all - room / 2, Math.max(room / 2, value));
  for (let turn = 0; turn < 400; turn += 1) {
    let moved = false;
    for (let i = 0; i < at.length; i += 1) {
      for (let j = i + 1; j < at.length; j += 1) {
        const [dx, dy] = [at[j][0] - at[i][0], at[j][1] - at[i][1]];
        const [ox, oy] = [cell.width - Math.abs(dx), cell.height - Math.abs(dy)];
        if (ox > 0.5 && oy > 0.5) {
          moved = true;
          // along the axis on which they overlap least; two at one place part by their order
          const [k, push] = ox < oy ? [0, (dx < 0 ? -ox : ox) / 2] : [1, (dy < 0 ? -oy : oy) / 2];
          at[i][k] -= push;
          at[j][k] += push;
        }
      }
    }
    for (const place of at) { place[0] = inside(place[0], cell.width, width); place[1] = inside(place[1], cell.height, height); }
    if (!moved) return turn;
  }
  return Infinity;
}

// in rows, from the top to the bottom of the drawing: what always has room
function inRows(places, cell, width) {
  const columns = Math.max(1, Math.floor(width / cell.width));
  const order = places.map((_, k) => k).sort((a, b) => places[b][1] - places[a][1] || a - b);
  const at = [];
  for (let first = 0; first < order.length; first += columns) {
    const row = order.slice(first, first + columns).sort((a, b) => places[a][0] - places[b][0]);
    row.forEach((k, column) => { at[k] = [((column + 0.5) * width) / row.length, (first / columns + 0.5) * cell.height]; });
  }
  return { at, height: Math.ceil(order.length / columns) * cell.height };
}

function isRound(places) {
  const far = places.map(([x, y]) => Math.hypot(x, y));
  return Math.max(...far) - Math.min(...far) < 0.01 * Math.max(...far);
}

// a circle with too many on it becomes a rectangle of cells, in the same order
function onRectangle(places, cell, width) {
  const half = Math.ceil(places.length / 2);
  const columns = Math.max(1, Math.min(Math.floor(width / cell.width) - 1, Math.floor(0.75 * half)));
  const rows = Math.max(1, half - columns);
  const corner = ([x, y]) => [(width - columns * cell.width) / 2 + x * cell.width, (y + 0.5) * cell.height];
  const cells = [];
  for (let x = 0; x < columns; x += 1) cells.push([x, 0]);
  for (let y = 0; y < rows; y += 1) cells.push([columns, y]);
  for (let x = columns; x > 0; x -= 1) cells.push([x, rows]);
  for (let y = rows; y > 0; y -= 1) cells.push([0, y]);
  const angle = places.map(([x, y]) => Math.atan2(x, -y));
  const at = [];
  places.map((_, k) => k).sort((a, b) => angle[b] - angle[a]).forEach((k, place) => { at[k] = corner(cells[place]); });
  return { at, height: (rows + 1) * cell.height };
}

function arrange(places, cell, width) {
  const least = Math.max(300, Math.min(540, width * 0.62), (places.length * cell.width * cell.height) / (0.4 * width));
  for (let height = least; height < 1.5 * least && height < 1000; height *= 1.1) {
    const at = spread(places, cell, width, height);
    const turns = untangle(at, cell, width, height);
    if (turns && isRound(places)) return onRectangle(places, cell, width);
    if (turns < Infinity) return { at, height };
  }
  return inRows(places, cell, width);
}

// a name that is too long loses its middle: many begin alike; all of it is in the table and in the details
function fitText(text, room) {
  const whole = [...text.textContent];
  const cut = (count) => `${whole.slice(0, Math.ceil(0.6 * count)).join('')}…${whole.slice(whole.length - Math.floor(0.4 * count)).join('')}`;
  for (let count = Math.min(whole.length, 40) - 1; count > 1 && text.getComputedTextLength() > room; count -= 1) text.textContent = cut(count);
}

function peerNode(name, cell) {
  const ring = cell.radius + 6;
  const node = svg('g', { class: 'peer', role: 'option', tabindex: -1, 'data-user': name },
    svg('circle', { class: 'halo', r: cell.radius + 11 }), svg('circle', { class: 'ground', r: ring }), svg('circle', { class: 'ring', r: ring }),
    svg('circle', { class: 'arc', r: ring, pathLength: 100, transform: 'rotate(-90)' }), svg('g', { class: 'state' }));
  if (cell.named) node.append(svg('text', { class: 'name', y: cell.radius + 25 }, name), svg('text', { class: 'count', y: cell.radius + 40 }));
  return node;
}

// the drawing without states: made again only when users, edges or the width change
function buildPeers(found) {
  const host = byId('live-canvas');
  const width = Math.max(260, Math.floor(host.clientWidth));
  const names = found.nodes.map((node) => node.name);
  const key = JSON.stringify([width, names, found.edges.map((edge) => edge.ends)]);
  if (key === peers.key) return;
  const cell = cellOf(names.length);
  const held = peers.nodes.includes(document.activeElement) ? document.activeElement.dataset.user : null;
  const { at, height } = names.length ? arrange(found.places, cell, width) : { at: [], height: 120 };
  const bent = bentEdges({ users: names.length, edges: found.edges.map((edge) => edge.ends), places: at });
  const lift = cell.named ? -17 : 0; // a shape is above the middle of its cell, its name below
  Object.assign(peers, { key, names, at, radius: cell.radius });
  peers.edges = found.edges.map(({ ends: [i, j] }, k) => svg('path', { d: edgePath(at[i], at[j], bent.has(k), [width / 2, height / 2]) }));
  peers.nodes = names.map((name, k) => {
    const node = peerNode(name, cell);
    node.setAttribute('transform', `translate(${at[k][0].toFixed(1)} ${(at[k][1] + lift).toFixed(1)})`);
    return node;
  });
  const lifted = svg('g', { transform: `translate(0 ${lift})` }, ...peers.edges);
  host.replaceChildren(svg('svg', {
    id: 'peers', width, height, viewBox: `0 0 ${width} ${height}`, role: 'listbox', 'aria-labelledby': 'live-title', 'aria-describedby': 'live-hint',
  }, lifted, ...peers.nodes));
  for (const node of peers.nodes) for (const text of node.querySelectorAll('.name')) fitText(text, cell.width - 8);
  peers.focus = Math.max(0, names.indexOf(held ?? names[peers.focus]));
  listenToPeers();
  if (held !== null) peers.nodes[peers.focus]?.focus({ preventScroll: true });
}

function paintPeers(found) {
  found.edges.forEach((edge, k) => peers.edges[k].setAttribute('class', `link l-${edge.state}`));
  found.nodes.forEach((user, k) => {
    const node = peers.nodes[k];
    const part = user.steps ? Math.min(1, user.step / user.steps) : 0;
    node.setAttribute('class', `peer s-${user.state}`);
    node.setAttribute('tabindex', k === peers.focus ? 0 : -1);
    node.setAttribute('aria-selected', String(user.name === live.chosen));
    const away = user.neighbours.filter((other) => other.state === 'broken').map((other) => other.name);
    const label = `${user.name}: ${user.text}${away.length ? `; not connected to ${listed(away)}` : ''}`;
    if (node.getAttribute('aria-label') !== label) node.setAttribute('aria-label', label);
    node.querySelector('.arc').setAttribute('stroke-dasharray', `${(100 * part).toFixed(1)} 100`);
    if (node.dataset.state !== user.state) node.querySelector('.state').replaceChildren(signOf(user.state, peers.radius));
    node.dataset.state = user.state;
    const count = node.querySelector('.count');
    if (count) count.textContent = user.steps ? `${counted(user.step)} of ${counted(user.steps)}` : '';
  });
}

function listenToPeers() {
  peers.nodes.forEach((node, k) => {
    node.addEventListener('click', () => goToPeer(k));
    node.addEventListener('keydown', (event) => peerKeyed(event, k));
    node.addEventListener('pointerenter', () => { const box = node.querySelector('.state').getBoundingClientRect(); showTip(box.right, box.top + box.height / 2, peers.names[k], [], [live.found.nodes[k].text]); });
    node.addEventListener('pointerleave', hideTip);
  });
}

// the choice follows the focus, as in any list
function goToPeer(k) {
  peers.focus = k;
  choosePeer(peers.names[k]);
  peers.nodes[k]?.focus({ preventScroll: true });
}

function peerKeyed(event, k) {
  const way = WAYS[event.key];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (way) goToPeer(toward(peers.at, k, way));
  else if (event.key === 'Home' || event.key === 'End') goToPeer(event.key === 'Home' ? 0 : peers.nodes.length - 1);
  else if (event.key === 'Enter' || event.key === ' ') goToPeer(k);
  else if (event.key === 'Escape') choosePeer(null);
  else return;
  event.preventDefault();
}
