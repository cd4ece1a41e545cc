// Scales, ticks and the frame of a plot of lines.

function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
  const ticks = [];
  // adding 0 turns the -0 of a rounded-up small negative into 0
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) ticks.push(k * step + 0);
  return { ticks, step, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (String(step / power).startsWith('2.5') ? 1 : 0)) };
}

function linearScale(low, high, count) {
  if (!(high > low)) { const room = Math.abs(low) * 0.1 || 1; low -= room; high += room; }
  const { ticks, digits } = niceTicks(low, high, count);
  const text = (value) => (Math.abs(value) >= 1e5 ? value.toPrecision(2) : value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  return { fraction: (value) => (value - low) / (high - low), ticks: ticks.map((value) => ({ value, text: text(value) })) };
}

function logScale(low, high, count) {
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const ticks = [];
  const subs = b - a > 4 ? [1] : b - a > 1.6 ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(a); power <= b; power += 1) {
    for (const k of subs) { const value = k * 10 ** power; if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value); }
  }
  const every = Math.ceil(ticks.length / (count + 2));
  return {
    // what is not positive has no place; it lies just below the frame
    fraction: (value) => (Math.log10(Math.max(value, low / 1.2)) - a) / (b - a || 1),
    ticks: ticks.filter((_, k) => k % every === 0).map((value) => ({ value, text: fourDigits(value) })),
  };
}

// linear, or logarithmic where values spread over more than a factor of fifty
function valueScale(spreads, metric, count) {
  if (!spreads.length) return linearScale(0, 1, count);
  const range = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const [least, most] = range(spreads.map((s) => s.mean));
  let [low, high] = range(spreads.flatMap((s) => [s.mean - (s.error || 0), s.mean + (s.error || 0)]));
  if (least > 0 && most / least > 50 && metric.unit !== '%') return logScale(Math.max(low, least / 2) / 1.15, high * 1.15, count);
  const room = (high - low) * 0.04 || Math.abs(high) * 0.05 || 1;
  // from tick to tick, but never into what cannot be
  const { step } = niceTicks(low - room, high + room, count);
  low = low >= 0 ? Math.max(0, Math.floor((low - room) / step) * step) : Math.floor((low - room) / step) * step;
  high = Math.ceil((high + room) / step) * step;
  return linearScale(low, metric.unit === '%' ? Math.min(100, high) : high, count);
}

// a title without what it says in brackets, or cut, where there is no room for it
function fitted(text, width) {
  const most = Math.floor(width / 7.2);
  const short = text.length > most ? text.replace(/ \([^)]*\)$/, '') : text;
  return short.length > most ? `${short.slice(0, most - 1)}…` : short;
}

// a plot's frame: x and y give pixels; ticks are drawn, lines go into `inner`
function frame(host, options) {
  const width = Math.max(260, Math.floor(host.clientWidth));
  const height = options.height || Math.round(Math.min(380, Math.max(270, width * 0.66)));
  const left = 14 + 7.4 * Math.max(2, ...options.y.ticks.map((tick) => tick.text.length));
  const box = { left, right: width - 14, top: 30, bottom: height - 46 };
  const plot = {
    width, height, box,
    x: (value) => box.left + 10 + options.x.fraction(value) * (box.right - box.left - 20),
    y: (value) => box.bottom - options.y.fraction(value) * (box.bottom - box.top),
    inner: svg('g', null),
  };
  plot.root = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': options.label, tabindex: 0 });
  for (const tick of options.y.ticks) {
    const y = plot.y(tick.value);
    plot.root.append(svg('line', { class: 'gridline', x1: box.left, x2: box.right, y1: y, y2: y }),
      svg('text', { x: box.left - 8, y: y + 4, 'text-anchor': 'end' }, tick.text));
  }
  plot.root.append(svg('line', { class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  let last = -Infinity;
  for (const tick of options.x.ticks) {
    const x = plot.x(tick.value);
    const half = tick.text.length * 3.7;
    if (x - half < last + 6) continue;
    last = x + half;
    plot.root.append(svg('line', { class: 'axis', x1: x, x2: x, y1: box.bottom, y2: box.bottom + 5 }),
      svg('text', { x, y: box.bottom + 20, 'text-anchor': 'middle' }, tick.text));
  }
  plot.root.append(svg('text', { class: 'title', x: 2, y: 13 }, fitted(options.yTitle, width)),
    svg('text', { class: 'title', x: (box.left + box.right) / 2, y: height - 6, 'text-anchor': 'middle' }, fitted(options.xTitle, width)), plot.inner);
  const focused = host.contains(document.activeElement);
  host.replaceChildren(plot.root);
  if (focused) plot.root.focus({ preventScroll: true });
  return plot;
}

function valueTitle(metric) { return `${metric.heading} (${metric.better} is better)`; }

// pointer and arrow keys move one cursor over the places of a plot; `at(k, x, y)` shows it, `pick(k)` is a click or Enter
function cursor(plot, places, at, pick) {
  let current = -1;
  const leave = () => { current = -1; hideTip(); plot.inner.querySelector('.guide')?.remove(); };
  const go = (k, clientX, clientY) => {
    current = k;
    plot.inner.querySelector('.guide')?.remove();
    plot.inner.prepend(svg('line', { class: 'guide', x1: places[k], x2: places[k], y1: plot.box.top, y2: plot.box.bottom }));
    at(k, clientX, clientY);
  };
  const nearest = (event) => {
    const rect = plot.root.getBoundingClientRect();
    const x = ((event.clientX - rect.left) * plot.width) / rect.width;
    return places.reduce((best, place, k) => (Math.abs(place - x) < Math.abs(places[best] - x) ? k : best), 0);
  };
  if (!places.length) return;
  plot.root.addEventListener('pointermove', (event) => go(nearest(event), event.clientX, event.clientY));
  plot.root.addEventListener('pointerleave', leave);
  plot.root.addEventListener('blur', leave);
  if (pick) plot.root.addEventListener('click', (event) => pick(nearest(event)));
  plot.root.addEventListener('keydown', (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === 'Escape') leave();
    if (event.key === 'Enter' && pick && current >= 0) pick(current);
    if (!move) return;
    event.preventDefault();
    const k = Math.min(Math.max(current < 0 ? (move > 0 ? 0 : places.length - 1) : current + move, 0), places.length - 1);
    const rect = plot.root.getBoundingClientRect();
    go(k, rect.left + places[k] * (rect.width / plot.width), rect.top + rect.height / 2);
  });
}
