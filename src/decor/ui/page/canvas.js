// The graph as a picture: everybody coloured by epsilon; in a drawn graph, clicks, drags and keys change it.

// the same colours as in reports and figures, for a small to a large epsilon
page.ramp = ['#fde725', '#c2df23', '#86d549', '#52c569', '#2ab07f', '#1e9b8a', '#25858e', '#2d708e', '#38588c', '#433e85', '#482173', '#440154'];

const drawn = { names: [], edges: [], places: null, at: [], bent: new Set(), users: null, text: '' };
const view = { width: 0, height: 0, radius: 0, margin: 30, nodes: [], focus: 0, root: null };

// places as fractions of the canvas, in their own proportions
function fit(places) {
  const range = (k) => [Math.min(...places.map((p) => p[k])), Math.max(...places.map((p) => p[k]))];
  const [[x0, x1], [y0, y1]] = [range(0), range(1)];
  const { width, height } = canvasSize();
  const [w, h] = [width - 2 * view.margin, height - 2 * view.margin];
  const scale = Math.min(w / (x1 - x0 || 1e-9), h / (y1 - y0 || 1e-9));
  return places.map(([x, y]) => [0.5 + ((x - (x0 + x1) / 2) * scale) / w, 0.5 - ((y - (y0 + y1) / 2) * scale) / h]);
}

function canvasSize() {
  const width = Math.max(250, Math.floor(byId('canvas').clientWidth));
  return { width, height: Math.round(Math.min(440, Math.max(260, width * 0.8))) };
}

function pixels([x, y]) {
  return [view.margin + x * (view.width - 2 * view.margin), view.margin + y * (view.height - 2 * view.margin)];
}

function fraction(x, y) {
  const inside = (value) => Math.min(1, Math.max(0, value));
  return [inside((x - view.margin) / (view.width - 2 * view.margin)), inside((y - view.margin) / (view.height - 2 * view.margin))];
}

function showSketch() {
  const { names, edges, at } = state.sketch;
  Object.assign(drawn, { names, edges, places: null, at, bent: new Set(), users: null, text: '' });
  drawCanvas();
}

function neighboursOf(user) { return drawn.edges.filter((edge) => edge.includes(user)).map(([i, j]) => (i === user ? j : i)).sort((a, b) => a - b); }

function drawCanvas() {
  Object.assign(view, canvasSize());
  const count = drawn.names.length;
  view.radius = Math.max(3.5, Math.min(16, Math.min(view.width, 460) / (2.6 * Math.sqrt(count) + 6)));
  const inside = view.radius >= 9 && drawn.names.every((name) => name.length <= 3);
  // smaller dots leave space for names beside them
  if (!inside) view.radius = Math.min(view.radius, Math.max(3.5, 40 / Math.sqrt(count)));
  const held = view.nodes.findIndex((node) => node === document.activeElement);
  if (view.focus >= count) view.focus = Math.max(0, count - 1);
  view.root = svg('svg', {
    id: 'graph', width: view.width, height: view.height, viewBox: `0 0 ${view.width} ${view.height}`, role: 'group', 'aria-labelledby': 'canvas-title', 'aria-describedby': 'canvas-hint',
  }, svg('path', { class: 'edges', id: 'edges', 'stroke-width': Math.max(0.5, Math.min(1.8, 120 / Math.max(1, drawn.edges.length))) }), svg('path', { class: 'near', id: 'near' }), svg('path', { class: 'rubber', id: 'rubber' }));
  view.nodes = drawn.names.map((name, user) => {
    const node = svg('g', { class: 'user', tabindex: user === view.focus ? 0 : -1, 'data-user': name }, svg('circle', { class: 'node', r: view.radius }), svg('text', {}, name));
    if (inside) node.lastChild.classList.add('inside'); else if (count > 64) node.lastChild.remove();
    view.root.append(node);
    return node;
  });
  view.root.classList.toggle('many', count > 24);
  view.root.classList.toggle('drawing', state.topology === DRAWN);
  if (!count) view.root.append(svg('text', { x: view.width / 2, y: view.height / 2, 'text-anchor': 'middle' }, 'Click here to begin, or press Add.'));
  byId('canvas').replaceChildren(view.root);
  view.widths = view.nodes.map((node) => { const name = node.children[1]; return name && !inside ? name.getComputedTextLength() : 0; });
  place();
  paintUsers();
  showChosen();
  listen();
  if (held >= 0 && view.nodes.length) view.nodes[Math.min(held, view.nodes.length - 1)].focus({ preventScroll: true });
}

function edgeLine(edge, k) { return edgePath(pixels(drawn.at[edge[0]]), pixels(drawn.at[edge[1]]), drawn.bent.has(k), [view.width / 2, view.height / 2]); }

function place() {
  byId('edges').setAttribute('d', drawn.edges.map(edgeLine).join(''));
  view.nodes.forEach((node, user) => node.setAttribute('transform', `translate(${pixels(drawn.at[user]).map((v) => v.toFixed(1)).join(' ')})`));
  placeNames();
}

// the area that two boxes share: [middle x, middle y, width, height]
function shared([x, y, w, h], [u, v, a, b]) { return Math.max(0, Math.min(w, a, (w + a) / 2 - Math.abs(x - u))) * Math.max(0, Math.min(h, b, (h + b) / 2 - Math.abs(y - v))); }

// each name on the side of its dot where it covers least, below first; a second round, because a name may have been moved
// from where another one avoided it
function placeNames() {
  if (!view.widths.some((width) => width > 0)) return;
  const [r, high] = [view.radius, drawn.names.length > 24 ? 11 : 14];
  const away = r + 2 + high / 2;
  const dots = drawn.at.map((place) => [...pixels(place), 2 * r, 2 * r]);
  const boxes = dots.map(([x, y], user) => [x, y + away, view.widths[user], high]);
  for (let k = 0; k < 2 * dots.length; k += 1) {
    const user = k % dots.length;
    const [x, y, width] = [dots[user][0], dots[user][1], view.widths[user]];
    const [half, side] = [width / 2, r + 3 + width / 2];
    let least = Infinity;
    for (const [dx, dy] of [[0, away], [0, -away], [side, 0], [-side, 0], [half, away], [-half, away], [half, -away], [-half, -away]]) {
      const box = [x + dx, y + dy, width, high];
      // what is cut off at the border is as bad as what is covered
      let covered = width * high - shared(box, [view.width / 2, view.height / 2, view.width, view.height]);
      for (const dot of dots) covered += shared(box, dot);
      boxes.forEach((other, at) => { if (at !== user) covered += shared(box, other); });
      if (covered < least - 0.5) [least, boxes[user]] = [covered, box];
    }
  }
  view.nodes.forEach((node, user) => {
    const name = node.children[1];
    if (!name) return;
    name.setAttribute('x', (boxes[user][0] - dots[user][0]).toFixed(1));
    name.setAttribute('y', (boxes[user][1] - dots[user][1]).toFixed(1));
  });
}

// colours and words of everybody; nobody has any while the answer is not there
function paintUsers() {
  const { users } = drawn;
  const scale = users ? colourScale(users.map((user) => user.epsilon)) : null;
  view.nodes.forEach((node, user) => {
    const known = users && users[user];
    const rgb = known && scale && number(known.epsilon) !== Infinity ? scale.at(known.epsilon) : null;
    node.firstChild.style.fill = rgb ? css(rgb) : known ? 'var(--infinite)' : 'var(--raised)';
    const text = node.children[1];
    if (text?.classList.contains('inside')) text.style.fill = rgb ? readableOn(rgb) : known ? 'var(--card)' : 'var(--ink)';
    const drawing = state.topology === DRAWN;
    node.setAttribute('role', drawing ? 'button' : 'img');
    node.setAttribute('aria-label', `${factsOf(user).join('. ')}.`);
    if (drawing) node.setAttribute('aria-pressed', String(sketching.chosen === user));
  });
  const legend = users && users.length ? svg('svg', { width: view.width, height: 50, viewBox: `0 0 ${view.width} 50`, role: 'img', 'aria-label': legendSentence(scale, users) }, ...colourBar(view.width, -6, scale, users.map((user) => user.epsilon))) : null;
  byId('legend').replaceChildren(...(legend ? [legend] : []));
}

function legendSentence(scale, users) {
  if (!scale) return 'Every user’s epsilon is infinite';
  const [low, high] = scale.own;
  return scale.flat ? `Every user has epsilon ${roundedUp(high)}` : `Colours go from epsilon ${roundedUp(low)} to ${roundedUp(high)}; ${users.length} users`;
}

function factsOf(user) {
  const known = drawn.users && drawn.users[user];
  const names = neighboursOf(user).map((other) => drawn.names[other]);
  return [`User ${drawn.names[user]}`, known ? `ε = ${known.text.replace('inf', '∞')}` : 'ε is being computed', names.length ? `neighbours: ${listed(names)}` : 'no neighbours'];
}

function showChosen() {
  view.nodes.forEach((node, user) => {
    node.classList.toggle('chosen', sketching.chosen === user);
    if (state.topology === DRAWN) node.setAttribute('aria-pressed', String(sketching.chosen === user));
  });
  byId('remove').disabled = sketching.chosen === null;
  byId('remove').setAttribute('aria-label', sketching.chosen === null ? 'Remove the chosen user' : `Remove user ${state.sketch.names[sketching.chosen]}`);
  byId('rubber').setAttribute('d', '');
}

function light(user) {
  byId('near').setAttribute('d', user === null ? '' : drawn.edges.map((edge, k) => (edge.includes(user) ? edgeLine(edge, k) : '')).join(''));
  if (user === null) { hideTip(); return; }
  const box = view.nodes[user].firstChild.getBoundingClientRect();
  const [head, ...facts] = factsOf(user);
  showTip(box.right - 4, box.top + box.height / 2, head, [], facts);
}

function listen() {
  view.nodes.forEach((node, user) => {
    node.addEventListener('pointerenter', () => { if (!drag.active) light(user); });
    node.addEventListener('pointerleave', () => light(null));
    node.addEventListener('focus', () => { view.focus = user; light(user); });
    node.addEventListener('blur', () => light(null));
    node.addEventListener('keydown', (event) => keyed(event, user));
  });
  if (state.topology !== DRAWN) return;
  view.root.addEventListener('pointerdown', pressed);
  view.root.addEventListener('pointermove', dragged);
  view.root.addEventListener('pointerup', released);
  view.root.addEventListener('pointercancel', () => Object.assign(drag, { active: false, down: false, user: null }));
}

const drag = { active: false, user: null, x: 0, y: 0, down: false };

function at(event) {
  const box = view.root.getBoundingClientRect();
  return [((event.clientX - box.left) * view.width) / box.width, ((event.clientY - box.top) * view.height) / box.height];
}

function pressed(event) {
  if (event.button !== 0) return;
  const node = event.target.closest('.user');
  const [x, y] = at(event);
  Object.assign(drag, { active: false, down: true, user: node ? view.nodes.indexOf(node) : null, x, y });
  view.root.setPointerCapture(event.pointerId);
}

function dragged(event) {
  const [x, y] = at(event);
  if (sketching.chosen !== null && !drag.down) byId('rubber').setAttribute('d', `M${pixels(drawn.at[sketching.chosen]).join(',')}L${x},${y}`);
  if (!drag.down || drag.user === null) return;
  if (!drag.active && Math.hypot(x - drag.x, y - drag.y) < 5) return;
  drag.active = true;
  hideTip();
  drawn.at[drag.user] = fraction(x, y);
  place();
}

function released(event) {
  if (!drag.down) return;
  const [x, y] = at(event);
  const { user, active } = drag;
  Object.assign(drag, { active: false, down: false, user: null });
  if (active) { remember(); return; }
  if (user !== null) { view.focus = user; pick(user); return; }
  if (Math.hypot(x - drag.x, y - drag.y) < 5) { addUser(fraction(x, y)); }
}

const WAYS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// the nearest user on that side
function toward(places, user, [dx, dy]) {
  const from = places[user];
  let [best, found] = [Infinity, user];
  places.forEach(([x, y], other) => {
    const along = (x - from[0]) * dx + (y - from[1]) * dy;
    const off = Math.abs((x - from[0]) * dy) + Math.abs((y - from[1]) * dx);
    if (along > 0.5 && along + 2 * off < best) [best, found] = [along + 2 * off, other];
  });
  return found;
}

function go(user) {
  view.focus = user;
  view.nodes.forEach((node, k) => node.setAttribute('tabindex', k === user ? 0 : -1));
  view.nodes[user]?.focus();
}

function keyed(event, user) {
  const way = WAYS[event.key];
  const drawing = state.topology === DRAWN;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (way && event.shiftKey && drawing) {
    const [x, y] = pixels(drawn.at[user]);
    drawn.at[user] = fraction(x + 12 * way[0], y + 12 * way[1]);
    place();
    light(user);
    remember();
  } else if (way) go(toward(drawn.at.map(pixels), user, way));
  else if (event.key === 'Home' || event.key === 'End') go(event.key === 'Home' ? 0 : view.nodes.length - 1);
  else if (event.key === 'Escape') { if (sketching.chosen !== null) pick(sketching.chosen); light(null); }
  else if (drawing && (event.key === 'Enter' || event.key === ' ')) pick(user);
  else if (drawing && (event.key === 'Delete' || event.key === 'Backspace')) { removeUser(user); go(Math.min(user, view.nodes.length - 1)); }
  else if (drawing && (event.key === 'Insert' || event.key.toLowerCase() === 'n')) go(addUser());
  else return;
  event.preventDefault();
}
