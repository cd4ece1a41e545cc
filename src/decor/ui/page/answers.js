// What the server answered, as words, figures and bars. While an answer is not there, what is shown is dimmed and says so.

const NOTHING = '–';

function markStale(graph) {
  byId('answer').setAttribute('aria-busy', 'true');
  byId('answer').classList.add('stale');
  drawn.users = null;
  if (view.root && !graph) paintUsers();
}

function markFresh() {
  byId('answer').setAttribute('aria-busy', 'false');
  byId('answer').classList.remove('stale');
}

function showProblem(sentence) {
  byId('problem').textContent = `${sentence[0].toUpperCase()}${sentence.slice(1)}${/[.!?]$/.test(sentence) ? '' : '.'}`;
  byId('problem').hidden = false;
  showFigures(null);
  for (const id of ['errors', 'against', 'warnings', 'facts']) byId(id).replaceChildren();
  for (const id of ['statement', 'command', 'advice', 'better']) byId(id).textContent = '';
  byId('save').hidden = true;
  byId('copy').disabled = true;
  drawn.users = null;
  if (view.root) paintUsers();
  showUsers();
  markFresh();
}

function showGraph(graph) {
  const names = graph.labels;
  if (state.topology === DRAWN) {
    // the server may know the users in another order: their names say who is who
    drawn.text = graph.edge_list;
  } else {
    const bent = bentEdges(graph);
    Object.assign(drawn, { names, edges: graph.edges || [], places: graph.places, at: fit(graph.places), bent, users: null, text: '' });
    drawCanvas();
  }
  byId('advice').textContent = graph.advice;
  const said = { edges: 'edges', degrees: 'neighbours', algebraic_connectivity: 'algebraic connectivity', vertex_connectivity: 'vertex connectivity', consensus_rate: 'consensus rate' };
  byId('facts').replaceChildren(...Object.entries(said).map(([key, name]) => el('div', null, el('dt', null, name), el('dd', null, graph.facts[key]))));
}

function keyFigure(id, name, big, small) {
  return el('div', null, el('dt', null, name), el('dd', { class: 'big', id }, big), el('dd', { class: 'small' }, small));
}

function showFigures(answer) {
  const text = answer ? answer.shown : {};
  const error = answer ? answer.errors.find((each) => each.kind === 'decor').text : NOTHING;
  const local = answer ? answer.errors.find((each) => each.kind === 'local').text : '';
  const whose = answer && answer.labels_differ ? `user ${text.worst_user}, the most exposed` : 'of the most exposed user';
  byId('figures').replaceChildren(
    keyFigure('sigma-cdp', 'σ cdp', text.sigma_cdp ?? NOTHING, 'noise of every user'),
    keyFigure('sigma-cor', 'σ cor', text.sigma_cor ?? NOTHING, 'noise on every edge'),
    keyFigure('epsilon-spent', 'ε', (text.epsilon ?? NOTHING).replace('inf', '∞'), whose),
    keyFigure('error', 'predicted error', error, answer ? `central DP 1, local DP ${local}` : 'of the noise alone'),
  );
}

function showAnswer(answer) {
  byId('problem').hidden = true;
  byId('problem').textContent = '';
  const names = answer.labels || answer.per_user_epsilon.map((_, k) => String(k));
  const place = new Map(names.map((name, k) => [name, k]));
  drawn.users = drawn.names.map((name) => ({ epsilon: answer.per_user_epsilon[place.get(name)], text: answer.shown.per_user[place.get(name)] }));
  const values = answer.per_user_epsilon.map(number);
  showFigures({ ...answer, labels_differ: Math.min(...values) < Math.max(...values) * (1 - 1e-6) });
  byId('statement').textContent = answer.statement;
  byId('warnings').replaceChildren(...answer.shown.warnings.map((sentence) => el('p', { class: 'notice' }, sentence)));
  byId('command').textContent = answer.command;
  byId('copy').disabled = false;
  byId('save').hidden = !drawn.text;
  showErrors(answer.errors);
  byId('chosen-rounds').textContent = state.auto_rounds ? `Now: ${answer.gossip_rounds === 1 ? '1 round' : `${answer.gossip_rounds} rounds`}.` : '';
  showAgainst(answer.against, answer);
  paintUsers();
  showUsers();
  markFresh();
  const { sigma_cdp: own, sigma_cor: cor, epsilon } = answer.shown;
  summary(`Noise ${own} of every user and ${cor} on every edge; epsilon ${epsilon} against ${answer.shown.adversary}; predicted error ${answer.errors[1].text} times that of central DP.${answer.shown.warnings.length ? ` Warning: ${answer.shown.warnings.join(' ')}` : ''}`);
}

// said when things have come to rest, so that a moving slider does not talk without end
let waiting = 0;
function summary(sentence) {
  clearTimeout(waiting);
  // what is not shown is not announced
  waiting = setTimeout(() => { if (!byId('plan').hidden) tell(sentence); }, 600);
}

function showErrors(errors) {
  const names = { central: 'central DP', decor: 'DECOR', local: 'local DP' };
  const most = Math.max(...errors.map((each) => each.value));
  byId('errors').replaceChildren(el('dl', { class: 'bars' }, ...errors.map((each) => el('div', null,
    el('dt', null, names[each.kind]),
    el('dd', null, el('span', { class: `track ${each.kind}`, 'aria-hidden': 'true' }, el('i', { paint: { width: `${Math.max(0.6, (100 * each.value) / most)}%` } })), el('b', { id: `error-${each.kind}` }, each.text)),
  ))));
}

function showAgainst(rows, answer) {
  const most = Math.max(...rows.map((row) => number(row.epsilon)).filter(Number.isFinite), 1e-300);
  const found = new Map(rows.map((row) => [row.adversary, row]));
  const body = answer.listed.map((name) => {
    const row = found.get(name);
    if (!row) return el('tr', { class: 'pending' }, el('th', { scope: 'row' }, name), el('td', { class: 'number' }, 'searching …'), el('td', null, ''));
    const endless = number(row.epsilon) === Infinity;
    const to = row.to.length ? `, to ${listed(row.to)}` : '';
    return el('tr', { class: name === answer.adversary ? 'chosen' : null, title: `against ${row.sentence}` },
      el('th', { scope: 'row' }, name, el('span', { class: endless ? 'meter endless' : 'meter', 'aria-hidden': 'true', paint: { width: endless ? '100%' : `${(100 * number(row.epsilon)) / most}%` } })),
      el('td', { class: 'number' }, row.text.replace('inf', '∞')), el('td', { class: 'number name' }, `${row.most_exposed}${to}`));
  });
  byId('against').replaceChildren(el('table', null,
    el('thead', null, el('tr', null, el('th', { scope: 'col' }, 'adversary'), el('th', { scope: 'col', class: 'number' }, 'ε'), el('th', { scope: 'col', class: 'number' }, 'most exposed'))),
    el('tbody', null, ...body)));
}

// everybody in words, and in a drawn graph the way to change it without a pointer
function showUsers() {
  if (!byId('table').open) return;
  const drawing = state.topology === DRAWN;
  const held = document.activeElement?.closest?.('#everybody') ? document.activeElement.getAttribute('aria-label') : null;
  const rows = drawn.names.map((name, user) => {
    const neighbours = neighboursOf(user).map((other) => drawn.names[other]).join(', ') || 'none';
    const field = drawing ? el('input', { value: name, maxlength: 40, 'aria-label': `Name of user ${name}` }) : null;
    field?.addEventListener('change', () => renameUser(user, field.value));
    const button = drawing ? el('button', { type: 'button', 'aria-label': `Remove user ${name}` }, 'Remove') : null;
    button?.addEventListener('click', () => removeUser(user));
    return el('tr', null, el('th', { scope: 'row' }, field || name), el('td', { class: 'number' }, drawn.users ? drawn.users[user].text.replace('inf', '∞') : NOTHING),
      el('td', null, neighbours), drawing ? el('td', null, button) : null);
  });
  const heads = ['user', 'ε', 'neighbours', ...(drawing ? ['change'] : [])];
  byId('everybody').replaceChildren(el('thead', null, el('tr', null, ...heads.map((head, k) => el('th', { scope: 'col', class: k === 1 ? 'number' : null }, head)))), el('tbody', null, ...rows));
  if (held) [...byId('everybody').querySelectorAll('[aria-label]')].find((each) => each.getAttribute('aria-label') === held)?.focus();
  for (const id of ['from', 'to']) {
    const kept = byId(id).value;
    byId(id).replaceChildren(...drawn.names.map((name, user) => el('option', { value: user }, name)));
    byId(id).value = kept !== '' && Number(kept) < drawn.names.length ? kept : id === 'to' ? Math.min(1, drawn.names.length - 1) : 0;
  }
  if (drawing) showConnect();
}

function makeAnswers() {
  const button = byId('copy');
  const told = (text) => { button.textContent = text; tell(`${text}.`); setTimeout(() => { button.textContent = 'Copy'; }, 1600); };
  const select = () => { window.getSelection().selectAllChildren(byId('command')); told(document.execCommand('copy') ? 'Copied' : 'Selected'); };
  button.addEventListener('click', () => {
    if (!navigator.clipboard) { select(); return; }
    navigator.clipboard.writeText(byId('command').textContent).then(() => told('Copied'), select);
  });
  byId('table').addEventListener('toggle', showUsers);
}
