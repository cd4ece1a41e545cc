// Words and numbers about the chosen outcome: what is promised, key figures, who learns what; and the sorting of the results.

function drawPromise() {
  const outcome = state.outcome();
  const method = page.methods[state.method];
  const none = method.kind === 'none' ? 'Nothing is promised: this method has no privacy.' : 'This method has no outcome with this budget.';
  byId('guarantee').textContent = outcome ? outcome.guarantee || none : none;
  byId('method-sentence').textContent = method.sentence ? `${method.name}: ${method.sentence}` : method.name;
  const early = outcome && outcome.stopped ? outcome.stopped : '';
  byId('stopped').textContent = early;
  byId('stopped').hidden = !early;
}

function keyFigure(big, unit, name, small) {
  return el('div', null, el('dt', null, name), el('dd', { class: 'big' }, big, unit ? el('span', { class: 'unit' }, unit) : null), small ? el('dd', { class: 'small' }, small) : null);
}

function aside(spread) { return spread ? ` ± ${spread}` : ''; }

function against(outcome, kind, metric) {
  const own = outcome.final[metric.name];
  const others = page.outcomes.filter((o) => page.methods[o.method].kind === kind && o !== outcome && o.final[metric.name] && (o.epsilon === state.epsilon || o.epsilon === null));
  if (!own || !others.length) return null;
  others.sort((a, b) => betterFirst(metric, a.final[metric.name].mean, b.final[metric.name].mean));
  return { difference: own.mean - others[0].final[metric.name].mean, name: page.methods[others[0].method].name, text: others[0].final[metric.name].text };
}

function drawFigures() {
  const outcome = state.outcome();
  const metric = state.metric();
  const made = [];
  if (outcome) {
    const final = outcome.final[metric.name];
    const [mean, spread] = final ? pair(metric, final.mean, final.error) : ['–', ''];
    const of = final && final.seeds < final.of ? `${final.seeds} of ${final.of} seeds` : outcome.runs;
    made.push(keyFigure(mean, `${metric.unit}${aside(spread)}`, `${metric.label}, ${page.methods[outcome.method].name}`, final && final.range ? `${of}, from ${final.range}` : of));
    const compared = [['none', 'against no privacy'], ['local', 'against local DP'], ['central', 'against central DP']];
    for (const [kind, name] of compared) {
      const found = against(outcome, kind, metric);
      if (found && page.methods[outcome.method].kind !== kind) made.push(keyFigure(signed(metric, found.difference), metric.points, name, `${found.name}: ${found.text}`));
    }
    for (const other of page.metrics.filter((m) => m !== metric && outcome.final[m.name])) {
      const found = outcome.final[other.name];
      const [middle, around] = pair(other, found.mean, found.error);
      if (made.length < 2) made.push(keyFigure(middle, `${other.unit}${aside(around)}`, other.label, found.range ? `from ${found.range}` : ''));
    }
    if (made.length < 4) made.push(keyFigure(outcome.epsilonText, '', outcome.delta ? `ε, with δ = ${fourDigits(outcome.delta)}` : 'ε', `noise: σ cdp ${outcome.sigmaCdp}, σ cor ${outcome.sigmaCor}`));
    if (made.length < 4 && outcome.steps !== null) made.push(keyFigure(counted(outcome.steps), '', 'steps', outcome.planned && outcome.planned !== outcome.steps ? `of ${counted(outcome.planned)} planned` : ''));
  }
  byId('kpis').replaceChildren(...made);
}

function drawAdversaries() {
  const outcome = state.outcome();
  const rows = outcome ? outcome.adversaries : [];
  const any = page.outcomes.some((o) => o.adversaries.length);
  byId('adversary-card').hidden = !any;
  byId('adversary-card').parentElement.classList.toggle('single', !any || byId('graph-card').hidden);
  if (!any) return;
  const delta = outcome && outcome.delta ? `, δ = ${fourDigits(outcome.delta)}` : '';
  byId('adversary-note').textContent = outcome ? `ε of the most exposed user against each adversary: ${page.methods[outcome.method].name} with budget ε = ${outcome.epsilonText}${delta}.` : '';
  if (!rows.length) {
    byId('adversaries').replaceChildren(el('p', { class: 'empty' }, 'No adversaries were asked about for this method and budget.'));
    return;
  }
  const most = Math.max(...rows.map((row) => number(row.epsilon)).filter(Number.isFinite), 1e-300);
  const graph = page.graphs.find((g) => g.name === page.methods[outcome.method].graph);
  const name = (user) => (user === null || user === undefined ? '–' : graph && graph.labels ? graph.labels[user] : String(user));
  const body = rows.map((row) => {
    const endless = number(row.epsilon) === Infinity;
    return el('tr', null, el('th', { scope: 'row' }, row.name, el('span', { class: endless ? 'meter endless' : 'meter', 'aria-hidden': 'true', paint: { width: endless ? '100%' : `${(100 * number(row.epsilon)) / most}%` } })),
      el('td', { class: 'number' }, row.text), el('td', { class: 'number name' }, name(row.worst)));
  });
  byId('adversaries').replaceChildren(el('table', null,
    el('thead', null, el('tr', null, el('th', { scope: 'col' }, 'adversary'), el('th', { scope: 'col', class: 'number' }, 'ε'), el('th', { scope: 'col', class: 'number' }, 'most exposed'))),
    el('tbody', null, ...body)));
}

function markRow() {
  const outcome = state.outcome();
  for (const row of byId('results').tBodies[0].rows) row.classList.toggle('chosen', page.outcomes[row.dataset.outcome] === outcome);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = el('button', { type: 'button', title: 'Sort by this column' }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener('click', () => sortBy(table, heads, column));
  });
}

function sortBy(table, heads, column) {
  const way = heads[column].getAttribute('aria-sort') === 'ascending' ? 'descending' : 'ascending';
  heads.forEach((head, k) => (k === column ? head.setAttribute('aria-sort', way) : head.removeAttribute('aria-sort')));
  const sign = way === 'ascending' ? 1 : -1;
  const key = (row) => row.cells[column].dataset.sort;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    // what has no value comes last either way
    if (x === '' || y === '') return (x === '') - (y === '');
    return column === 0 ? sign * x.localeCompare(y) : sign * Math.sign(Math.min(Number(x), 1e308) - Math.min(Number(y), 1e308)) || a.dataset.outcome - b.dataset.outcome;
  });
  table.tBodies[0].append(...rows);
}
