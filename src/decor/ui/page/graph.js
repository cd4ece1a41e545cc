// Colours of users by their epsilon, and the lines of edges.

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

function colourBar(width, top, scale, users) {
  const infinite = users.filter((value) => value === 'inf').length;
  const made = [];
  const [x, w, y] = [width * 0.14, width * 0.72, top + 22];
  const said = (text, at, anchor, kind) => svg('text', { x: at, y: y + 28, 'text-anchor': anchor, class: kind || '' }, text);
  if (scale && scale.flat) made.push(svg('text', { x: width / 2, y: y + 10, 'text-anchor': 'middle', class: 'strong' }, `Every user: ε = ${roundedUp(scale.own[1])}`));
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
