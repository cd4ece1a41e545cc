// A run or a federation as it is now, looked at every second while somebody looks at the page.

const EVERY = 1000;
const watch = { seen: null, state: null, metric: null };

function showView(name) {
  for (const each of ['plan', 'watch']) {
    byId(each).hidden = each !== name;
    byId(`view-${each}`).setAttribute('aria-pressed', String(each === name));
  }
  document.querySelector('.history').hidden = name !== 'plan';
  if (name === 'plan') redraw(); else drawWatch();
}

async function look() {
  let again = EVERY;
  try {
    if (!document.hidden) {
      const found = await ask('watch', { seen: watch.seen }, 0);
      if (found.source === null) return;
      if (byId('views').hidden) { byId('views').hidden = false; showView('watch'); }
      watch.seen = found.seen;
      if (!found.unchanged) { watch.state = found; drawWatch(); }
      showQuiet(found.quiet);
      announceLive(watch.state);
      trouble('');
    }
  } catch (problem) {
    if (!(problem instanceof Trouble)) throw problem;
    trouble(problem.message);
    again = 5 * EVERY;
  }
  setTimeout(look, again);
}

function showQuiet(seconds) {
  const { state: found } = watch;
  const ago = seconds === null || seconds === undefined ? '' : seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  const silent = found && !found.over && seconds > 120 ? ' If that is long for this run, it may have been stopped.' : '';
  byId('watch-quiet').textContent = ago ? `Last written ${ago} ago.${silent}` : '';
}

function drawWatch() {
  const found = watch.state;
  if (!found || byId('watch').hidden) return;
  byId('watch-title').textContent = found.title || 'Watching';
  byId('watch-source').textContent = found.source;
  if (byId('watch-said').textContent !== found.said) byId('watch-said').textContent = found.said;
  const live = found.kind === 'federation';
  // steps change every second: what is worth hearing is announced by announceLive
  byId('watch-said').setAttribute('aria-live', live ? 'off' : 'polite');
  byId('live').hidden = !live;
  if (!live) byId('live-warnings').replaceChildren();
  byId('watch-figures').replaceChildren();
  byId('watch-table').hidden = !found.rows;
  byId('watch-statement').hidden = !found.statement;
  byId('watch-statement').textContent = found.statement || '';
  byId('watch-choice').hidden = !(found.kind === 'training' && found.metrics.length > 1);
  if (found.kind === 'training') drawTraining(found);
  else byId('watch-plot').replaceChildren();
  if (live) drawLive(found);
  if (found.kind === 'comparison') drawComparison(found);
}

function progressFigure(name, id, text, part, small) {
  const meter = el('span', { class: 'track decor', 'aria-hidden': 'true' }, el('i', { paint: { width: `${Math.min(100, 100 * part)}%` } }));
  return el('div', null, el('dt', null, name), el('dd', { class: 'big', id }, text), el('dd', { class: 'small' }, meter, small));
}

// a metric of a run, in the words and digits that plots use
function dressed(metric) {
  const unit = metric.percent ? '%' : '';
  return { ...metric, unit, heading: metric.percent ? `${metric.label}, %` : metric.label, decimals: metric.percent ? 1 : 4 };
}

function drawTraining(found) {
  if (!found.metrics.some((metric) => metric.name === watch.metric)) watch.metric = found.metrics[0]?.name ?? null;
  const choice = byId('metric');
  if ([...choice.options].map((each) => each.value).join() !== found.metrics.map((each) => each.name).join()) {
    choice.replaceChildren(...found.metrics.map((metric) => el('option', { value: metric.name }, metric.label)));
  }
  choice.value = watch.metric ?? '';
  const figures = [
    progressFigure(found.over ? 'steps' : 'steps, when last measured', 'watch-step', counted(found.step), found.step / found.steps, `of ${counted(found.steps)}; ${found.graph}`),
    progressFigure(`ε of ${counted(found.step)} steps, if fixed in advance`, 'watch-epsilon', found.epsilon, found.budget ? Number(found.epsilon) / Number(found.budget) : 1, `${found.budget ? `of ${found.budget}` : 'without a budget'}${found.over ? '' : '; steps since then cost more'}`),
  ];
  const metric = found.metrics.map(dressed).find((each) => each.name === watch.metric);
  if (!metric) { byId('watch-figures').replaceChildren(...figures); byId('watch-plot').replaceChildren(el('p', { class: 'empty' }, 'Nothing has been measured yet.')); return; }
  const scale = metric.percent ? 100 : 1;
  const points = found.history.step.map((step, k) => ({ step, mean: found.history[metric.name][k] })).filter((p) => typeof p.mean === 'number').map((p) => ({ ...p, mean: p.mean * scale }));
  const last = points[points.length - 1];
  if (last) figures.push(keyFigure('watch-value', metric.label, `${shown(metric, last.mean)}${metric.unit ? ` ${metric.unit}` : ''}`, `at step ${counted(last.step)}`));
  byId('watch-figures').replaceChildren(...figures);
  drawCurve(found, metric, points);
}

function drawCurve(found, metric, points) {
  const host = byId('watch-plot');
  if (!points.length) { host.replaceChildren(el('p', { class: 'empty' }, 'Nothing has been measured yet.')); return; }
  const plot = frame(host, {
    x: linearScale(0, found.steps, Math.max(3, Math.floor(host.clientWidth / 110))), y: valueScale(points, metric, 5), height: 340,
    xTitle: 'steps', yTitle: valueTitle(metric), label: `${metric.label} over the steps so far; arrow keys read the values`,
  });
  const line = points.map((p) => `${plot.x(p.step).toFixed(1)},${plot.y(p.mean).toFixed(1)}`).join('L');
  const end = points[points.length - 1];
  plot.inner.append(svg('path', { class: 'line', id: 'watch-line', d: `M${line}`, paint: { stroke: 'var(--decor)' } }),
    svg('circle', { class: 'dot', cx: plot.x(end.step), cy: plot.y(end.mean), r: 5, paint: { fill: 'var(--decor)' } }));
  cursor(plot, points.map((p) => plot.x(p.step)), (k, x, y) => showTip(x, y, `step ${counted(points[k].step)}`, [{ name: metric.label, text: `${shown(metric, points[k].mean)}${metric.unit ? ` ${metric.unit}` : ''}` }]));
}

function drawComparison(found) {
  const metrics = found.metrics.map(dressed);
  const cell = (metric, value) => (typeof value === 'number' ? shown(metric, value * (metric.percent ? 100 : 1)) : NOTHING);
  const rows = found.rows.map((row) => el('tr', null, el('th', { scope: 'row' }, row.method), el('td', { class: 'number' }, row.epsilon), ...metrics.map((metric) => el('td', { class: 'number' }, cell(metric, row[metric.name])))));
  tabled(['method', 'ε', ...metrics.map((metric) => metric.heading)], rows, [1, ...metrics.map((_, k) => k + 2)]);
}

function tabled(heads, rows, numbers) {
  byId('watch-table').replaceChildren(el('table', null, el('thead', null, el('tr', null, ...heads.map((head, k) => el('th', { scope: 'col', class: numbers.includes(k) ? 'number' : null }, head)))), el('tbody', null, ...rows)));
}

function makeWatch() {
  for (const each of ['plan', 'watch']) byId(`view-${each}`).addEventListener('click', () => showView(each));
  byId('metric').addEventListener('change', (event) => { watch.metric = event.target.value; drawWatch(); });
  look();
}
