// The graph with everybody's epsilon as a colour; too many users to draw are a histogram.

function rampColour(fraction) {
  const place = Math.min(Math.max(fraction, 0), 1) * (page.ramp.length - 1);
  const k = Math.min(Math.floor(place), page.ramp.length - 2);
  const part = (hex, at) => parseInt(hex.slice(1 + 2 * at, 3 + 2 * at), 16);
  return [0, 1, 2].map((at) => Math.round(part(page.ramp[k], at) + (place - k) * (part(page.ramp[k + 1], at) - part(page.ramp[k], at))));
}

function css(rgb) { return `rgb(${rgb.join(', ')})`; }

function readableOn(rgb) {
  const [r, g, b] = rgb.map((part) => (part <= 10 ? part / 3294 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? '#10131a' : '#ffffff';
}

// This outcome's own range where users differ; where they are alike, the range of the whole report, so that a change of epsilon is seen.
function colourScale(users) {
  const finite = (values) => values.map(number).filter(Number.isFinite);
  const range = (values) => [Math.min(...values), Math.max(...values)];
  const own = finite(users);
  if (!own.length) return null;
  let [low, high] = range(own);
  const alike = high - low <= 1e-3 * high;
  if (alike) [low, high] = range(page.outcomes.flatMap((o) => (o.users ? range(finite(o.users)) : [])).filter(Number.isFinite));
  const flat = high - low <= 1e-3 * high;
  const log = low > 0 && high > 5 * low;
  const fraction = (value) => (flat ? 0.5 : log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  return { low, high, alike, flat, log, own: range(own), fraction, at: (value) => rampColour(fraction(number(value))) };
}

function drawGraph() {
  const graph = page.graphs.find((g) => g.name === state.graph);
  byId('graph-card').hidden = !graph;
  if (!graph) return;
  const outcome = state.graphOutcome();
  const host = byId('graph');
  const whose = outcome ? `${page.methods[outcome.method].name}, ε = ${outcome.epsilonText}` : 'no outcome with this budget';
  byId('graph-note').textContent = `${whose}; ${graph.description || `${graph.name}, ${counted(graph.users)} users`}.`;
  if (outcome && outcome.histogram) drawHistogram(host, outcome.histogram);
  else if (graph.places) drawNetwork(host, graph, outcome ? outcome.users : null);
  else host.replaceChildren(el('p', { class: 'empty' }, 'This graph is too large to draw, and nobody’s own ε is known here.'));
}

// edges that would run through another user, as those that close a torus: they are bent
function bentEdges(graph) {
  const bent = new Set();
  const edges = graph.edges || [];
  if (edges.length * graph.users > 4e5) return bent;
  edges.forEach(([i, j], e) => {
    const [[ax, ay], [bx, by]] = [graph.places[i], graph.places[j]];
    const square = (bx - ax) ** 2 + (by - ay) ** 2;
    const through = graph.places.some(([x, y], k) => {
      const along = ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / square;
      const off = (x - ax) * (by - ay) - (y - ay) * (bx - ax);
      return k !== i && k !== j && along > 0 && along < 1 && off * off < 1e-4 * square * square;
    });
    if (through) bent.add(e);
  });
  return bent;
}

// a straight line, or a bow away from the middle of the drawing
function edgePath([x0, y0], [x1, y1], bent, [mx, my]) {
  const show = (...values) => values.map((v) => v.toFixed(1)).join(',');
  if (!bent) return `M${show(x0, y0)}L${show(x1, y1)}`;
  const [nx, ny] = [(y1 - y0) * 0.17, (x0 - x1) * 0.17];
  const [cx, cy] = [(x0 + x1) / 2, (y0 + y1) / 2];
  const side = nx * (cx - mx) + ny * (cy - my) < 0 ? -1 : 1;
  return `M${show(x0, y0)}Q${show(cx + side * nx, cy + side * ny)} ${show(x1, y1)}`;
}

function placed(graph, width, bowed) {
  const xs = graph.places.map((p) => p[0]);
  const ys = graph.places.map((p) => p[1]);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const radius = Math.max(3, Math.min(15, Math.min(width, 460) / (2.9 * Math.sqrt(graph.users) + 4)));
  const margin = radius + (bowed ? 30 : 8);
  const scale = Math.min((width - 2 * margin) / (x1 - x0 || 1e-9), (380 - 2 * margin) / (y1 - y0 || 1e-9));
  const height = Math.max(90, Math.round((y1 - y0) * scale + 2 * margin));
  const at = graph.places.map(([x, y]) => [width / 2 + (x - (x0 + x1) / 2) * scale, height / 2 - (y - (y0 + y1) / 2) * scale]);
  return { at, height, radius };
}

function drawNetwork(host, graph, users) {
  const width = Math.max(260, Math.floor(host.clientWidth));
  const bent = bentEdges(graph);
  const { at, height, radius } = placed(graph, width, bent.size > 0);
  const scale = users ? colourScale(users) : null;
  const total = height + (users ? 62 : 8);
  const root = svg('svg', { width, height: total, viewBox: `0 0 ${width} ${total}`, role: 'group', 'aria-label': `The graph ${graph.name}; arrow keys go from user to user` });
  const neighbours = graph.labels.map(() => []);
  const lines = (graph.edges || []).map(([i, j], e) => edgePath(at[i], at[j], bent.has(e), [width / 2, height / 2]));
  const ofUser = graph.labels.map(() => []);
  (graph.edges || []).forEach(([i, j], e) => { neighbours[i].push(j); neighbours[j].push(i); ofUser[i].push(e); ofUser[j].push(e); });
  const near = svg('path', { class: 'near', d: '' });
  root.append(svg('path', { class: 'edges', d: lines.join(''), 'stroke-width': Math.max(0.4, Math.min(1.6, 60 / graph.users)) }), near);
  const nodes = at.map(([x, y], user) => {
    const rgb = !users ? [130, 140, 158] : number(users[user]) === Infinity || !scale ? null : scale.at(users[user]);
    const said = `${userFacts(graph, users, neighbours, user).join('. ')}.`;
    const node = svg('circle', { class: 'node', cx: x, cy: y, r: radius, tabindex: user ? -1 : 0, role: 'img', 'aria-label': said, 'data-user': user, paint: { fill: rgb ? css(rgb) : 'var(--infinite)' } });
    root.append(node);
    if (radius >= 9 && graph.labels[user].length <= 3) root.append(svg('text', { class: 'inside', x, y, paint: { fill: rgb ? readableOn(rgb) : 'var(--card)' } }, graph.labels[user]));
    return node;
  });
  root.append(...(users ? colourBar(width, height, scale, users) : []));
  host.replaceChildren(root);
  walk(root, nodes, at, (user) => {
    near.setAttribute('d', user === null ? '' : ofUser[user].map((e) => lines[e]).join(''));
    nodes.forEach((node, k) => node.classList.toggle('lit', user !== null && neighbours[user].includes(k)));
    if (user === null) { hideTip(); return; }
    const box = nodes[user].getBoundingClientRect();
    const [head, ...facts] = userFacts(graph, users, neighbours, user);
    showTip(box.right - 4, box.top + box.height / 2, head, [], facts);
  });
}

function userFacts(graph, users, neighbours, user) {
  const names = [...neighbours[user]].sort((a, b) => a - b).map((other) => graph.labels[other]);
  const facts = [`User ${graph.labels[user]}`, users ? `ε = ${roundedUp(users[user])}` : 'ε not known here'];
  if (graph.edges) facts.push(names.length ? `neighbours: ${listed(names)}` : 'no neighbours');
  return facts;
}

// one stop of the Tab key for the whole graph; arrows go to the nearest user on that side, Home and End to the first and last
function walk(root, nodes, at, light) {
  const go = (user) => { nodes.forEach((node, k) => node.setAttribute('tabindex', k === user ? 0 : -1)); nodes[user].focus(); };
  const toward = (user, [dx, dy]) => {
    let [best, found] = [Infinity, user];
    at.forEach(([x, y], other) => {
      const along = (x - at[user][0]) * dx + (y - at[user][1]) * dy;
      const off = Math.abs((x - at[user][0]) * dy) + Math.abs((y - at[user][1]) * dx);
      if (along > 0.5 && along + 2 * off < best) [best, found] = [along + 2 * off, other];
    });
    return found;
  };
  const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  nodes.forEach((node, user) => {
    node.addEventListener('pointerenter', () => light(user));
    node.addEventListener('pointerleave', () => light(null));
    node.addEventListener('focus', () => light(user));
    node.addEventListener('blur', () => light(null));
    node.addEventListener('keydown', (event) => {
      const next = ways[event.key] ? toward(user, ways[event.key]) : { Home: 0, End: nodes.length - 1 }[event.key];
      if (event.key === 'Escape') light(null);
      if (next === undefined) return;
      event.preventDefault();
      go(next);
    });
  });
}

function colourBar(width, top, scale, users) {
  const infinite = users.filter((value) => value === 'inf').length;
  const made = [];
  const [x, w, y] = [width * 0.14, width * 0.72, top + 22];
  const said = (text, at, anchor, kind) => svg('text', { x: at, y: y + 28, 'text-anchor': anchor, class: kind || '' }, text);
  if (scale && scale.flat) made.push(svg('text', { x: width / 2, y: y + 10, 'text-anchor': 'middle', class: 'strong' }, `Everybody: ε = ${roundedUp(scale.own[1])}`));
  else if (scale) {
    const stops = page.ramp.map((hex, k) => svg('stop', { offset: k / (page.ramp.length - 1), 'stop-color': hex }));
    made.push(svg('linearGradient', { id: 'ramp' }, ...stops), svg('rect', { class: 'ramp', x, y, width: w, height: 10, rx: 5, fill: 'url(#ramp)' }),
      said(roundedUp(scale.low), x, 'start'), said(roundedUp(scale.high), x + w, 'end'));
    made.push(said(scale.alike ? `everybody: ε = ${roundedUp(scale.own[1])}` : `ε of each user${scale.log ? ' (log)' : ''}`, x + w / 2, 'middle', 'strong'));
    for (const end of scale.own) {
      const at = x + scale.fraction(end) * w;
      made.push(svg('path', { d: `M${at - 5},${y - 9}h10l-5,7z`, paint: { fill: 'var(--ink)' } }));
    }
  }
  if (infinite) made.push(svg('text', { x: width / 2, y: scale ? y - 12 : y + 10, 'text-anchor': 'middle', paint: { fill: 'var(--infinite)' } }, `${counted(infinite)} of ${counted(users.length)} users: ε infinite`));
  return made;
}

function drawHistogram(host, bins) {
  if (!bins.counts.length || bins.alike) {
    const what = bins.alike ? `Everybody’s ε is ${roundedUp(bins.high)}.` : 'Everybody’s ε is infinite.';
    host.replaceChildren(el('p', { class: 'empty' }, what, bins.alike && bins.infinite ? ` Infinite for ${counted(bins.infinite)} more.` : null));
    return;
  }
  const y = linearScale(0, Math.max(...bins.counts) * 1.05, 4);
  const plot = frame(host, { x: linearScale(bins.low, bins.high, 5), y, xTitle: `ε of each user${bins.infinite ? `; infinite for ${counted(bins.infinite)} of ${counted(bins.of)}` : ''} (median ${roundedUp(bins.median)})`, yTitle: 'users', label: 'How everybody’s epsilon is distributed' });
  bins.counts.forEach((count, k) => {
    const [a, b] = [plot.x(bins.edges[k]), plot.x(bins.edges[k + 1])];
    if (count) plot.inner.append(svg('rect', { class: 'bar-mark', x: a + 0.5, width: Math.max(1, b - a - 1), y: plot.y(count), height: plot.box.bottom - plot.y(count) }));
  });
  const middles = bins.counts.map((_, k) => plot.x((bins.edges[k] + bins.edges[k + 1]) / 2));
  cursor(plot, middles, (k, x, at) => showTip(x, at, `${counted(bins.counts[k])} users`, [], [`ε from ${fourDigits(bins.edges[k])} to ${roundedUp(bins.edges[k + 1])}`]));
}
