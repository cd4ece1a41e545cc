// Privacy against utility: every method's final metric over epsilon, with error bars; no privacy as a band across.

function privacyRows(metric) {
  return page.outcomes.map((outcome, k) => ({ outcome, k, final: outcome.final[metric.name] })).filter(({ outcome }) => state.shown(outcome.method));
}

function epsilonScale(pixels) {
  const finite = page.epsilons.map((e) => e.value).filter((value) => value !== 'inf');
  const low = finite.length ? Math.min(...finite) : 1;
  const high = finite.length ? Math.max(...finite) : 1;
  // an infinite epsilon has its own place, one step to the right
  const span = Math.max(Math.log10(high / low), 0.3);
  const end = page.epsilons.some((e) => e.value === 'inf') ? span * 1.25 : span;
  const fraction = (value) => 0.05 + 0.9 * (value === 'inf' ? 1 : high === low && end === span ? 0.5 : Math.log10(value / low) / end);
  const crowded = page.epsilons.length > pixels / 40;
  const ticks = page.epsilons.filter((_, k) => !crowded || k % 2 === 0).map((e) => ({ value: e.value, text: e.text }));
  return { fraction, ticks };
}

function drawPrivacy() {
  const host = byId('privacy');
  // one outcome is no comparison
  byId('privacy-card').hidden = page.outcomes.length < 2;
  byId('figures').classList.toggle('single', page.outcomes.length < 2);
  if (page.outcomes.length < 2) return;
  const metric = state.metric();
  const rows = privacyRows(metric);
  const known = rows.filter((row) => row.final);
  byId('privacy-note').textContent = `Final ${metric.label}, ${spreadNote(known.map((row) => row.final.error))}.${page.epsilons.length > 1 ? ' Click a column to choose its ε.' : ''}`;
  const plot = frame(host, {
    x: epsilonScale(host.clientWidth), y: valueScale(known.map((row) => row.final), metric, 5), xTitle: 'privacy budget ε (log scale; smaller is more private)',
    yTitle: valueTitle(metric), label: `${metric.label} of every method against epsilon; arrow keys read the values`,
  });
  const places = page.epsilons.map((e) => plot.x(e.value));
  const chosen = page.epsilons.findIndex((e) => e.value === state.epsilon);
  if (chosen >= 0) {
    const half = Math.min(22, (plot.box.right - plot.box.left) / page.epsilons.length / 2.4);
    plot.inner.append(svg('rect', { class: 'column', x: places[chosen] - half, y: plot.box.top, width: 2 * half, height: plot.box.bottom - plot.box.top, rx: 6 }));
  }
  page.methods.forEach((method, m) => {
    if (!state.shown(m)) return;
    const own = rows.filter((row) => row.outcome.method === m);
    const group = svg('g', { 'data-method': m, 'data-series': method.name });
    own.filter((row) => row.outcome.epsilon === null && row.final).forEach((row) => group.append(...drawLevel(plot, m, row.final, method.name)));
    group.append(...drawPoints(plot, m, own.filter((row) => row.outcome.epsilon !== null), metric));
    plot.inner.append(group);
  });
  cursor(plot, places, (k, x, y) => privacyTip(k, x, y, metric, rows), (k) => change({ epsilon: page.epsilons[k].value }));
  if (!places.length) plot.root.setAttribute('aria-label', `${metric.label} without privacy`);
}

function drawLevel(plot, m, final, name) {
  const { left, right } = plot.box;
  const y = plot.y(final.mean);
  const [top, bottom] = [plot.y(final.mean + (final.error || 0)), plot.y(final.mean - (final.error || 0))];
  return [
    svg('rect', { class: 'band', x: left, width: right - left, y: top, height: Math.max(1, bottom - top), paint: { fill: colour(m) } }),
    svg('line', { class: 'line level', x1: left, x2: right, y1: y, y2: y, 'stroke-dasharray': '6 5', 'stroke-linecap': 'butt', paint: { stroke: colour(m) } }),
    svg('text', { x: left + 4, y: top - 6 > plot.box.top ? top - 6 : bottom + 15 }, name.length > 28 ? `${name.slice(0, 27)}…` : name),
  ];
}

function drawPoints(plot, m, rows, metric) {
  const style = page.methods[m];
  const sorted = [...rows].sort((a, b) => number(a.outcome.epsilon) - number(b.outcome.epsilon));
  const known = sorted.filter((row) => row.final);
  // side by side by a few pixels, so that bars of different methods do not hide each other
  const aside = (m - (page.methods.length - 1) / 2) * 3;
  const at = (row) => [plot.x(row.outcome.epsilon) + aside, plot.y(row.final.mean)];
  const made = [];
  if (known.length > 1) made.push(svg('path', { class: 'line', d: `M${known.map((row) => at(row).join(',')).join('L')}`, paint: { stroke: colour(m) } }));
  for (const row of known) {
    const [x, y] = at(row);
    if (row.final.error) {
      const [top, bottom] = [plot.y(row.final.mean + row.final.error), plot.y(row.final.mean - row.final.error)];
      made.push(svg('path', { class: 'whisker', d: `M${x - 4},${top}h8M${x},${top}V${bottom}M${x - 4},${bottom}h8`, paint: { stroke: colour(m) } }));
    }
    const partial = row.final.seeds < row.final.of;
    made.push(svg('path', {
      class: partial ? 'dot partial' : 'dot', d: markPath(style.mark, x, y, 5), 'data-outcome': row.k, 'data-text': row.final.text,
      paint: partial ? { stroke: colour(m) } : { fill: colour(m) },
    }));
  }
  for (const row of sorted.filter((r) => !r.final)) {
    const x = plot.x(row.outcome.epsilon) + aside;
    const y = metric.better === 'higher' ? plot.box.bottom - 9 : plot.box.top + 9;
    made.push(svg('path', { class: 'failed', d: `M${x - 4.5},${y - 4.5}l9,9m0,-9l-9,9`, 'data-outcome': row.k, paint: { stroke: colour(m) } }));
  }
  return made;
}

function privacyTip(k, x, y, metric, rows) {
  const at = rows.filter(({ outcome }) => outcome.epsilon === page.epsilons[k].value || outcome.epsilon === null);
  const worst = metric.better === 'higher' ? -Infinity : Infinity;
  at.sort((a, b) => betterFirst(metric, a.final ? a.final.mean : worst, b.final ? b.final.mean : worst));
  const lines = at.map(({ outcome, final }) => ({
    colour: colour(outcome.method), name: page.methods[outcome.method].name, text: final ? final.text : 'no value (×)',
  }));
  const stopped = at.filter(({ outcome }) => outcome.stopped).map(({ outcome }) => `${page.methods[outcome.method].name}: ${outcome.stopped}`);
  showTip(x, y, `ε = ${page.epsilons[k].text}`, lines, stopped);
}
