// Questions to the server. One is under way at a time and the latest wins: what the controls no longer say is never drawn.

const page = { ramp: [], outcomes: [], name: crypto.randomUUID() };

// The token stands behind # in the address, which browsers send nobody; it is taken away so that no screenshot shows it.
function tokenGiven() { return window.location.hash.length > 40; } // shorter ones are places on the page

const token = (function () {
  const given = window.location.hash.slice(1);
  if (tokenGiven()) {
    sessionStorage.setItem('token', given);
    history.replaceState(null, '', window.location.pathname);
  }
  return sessionStorage.getItem('token');
}());

class Trouble extends Error {}

function trouble(text) {
  const place = byId('trouble');
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}

async function ask(kind, question, number, signal) {
  let response;
  try {
    response = await fetch(`/api/${kind}`, {
      method: 'POST', signal, body: JSON.stringify({ page: page.name, number, question }),
      headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${token}` },
    });
  } catch (problem) {
    if (problem.name === 'AbortError') throw problem;
    throw new Trouble('The planner does not answer any more: start decor ui again, and open the address it prints.');
  }
  const answer = await response.json().catch(() => ({ error: 'The planner’s answer could not be read.' }));
  if (!response.ok) throw new Trouble(`${answer.error[0].toUpperCase()}${answer.error.slice(1)}.`);
  return answer;
}

const PATIENCE = 150; // milliseconds that an older question may still take

const desk = { number: 0, settled: 0, running: false, kind: '', controller: null, graph: true };

// something was changed: of the graph too, or of the numbers alone
function changed(graph) {
  desk.number += 1;
  desk.graph = desk.graph || graph;
  markStale(desk.graph);
  if (!desk.running) { answerAll(); return; }
  const { controller } = desk;
  if (desk.kind === 'against') controller.abort();
  else setTimeout(() => controller.abort(), PATIENCE);
}

async function answerAll() {
  desk.running = true;
  while (desk.settled !== desk.number) {
    const now = desk.number;
    desk.controller = new AbortController();
    try {
      await answerOne(now, (kind, question) => { desk.kind = kind; return ask(kind, question, now, desk.controller.signal); });
      trouble('');
      if (desk.number === now) desk.settled = now;
    } catch (problem) {
      if (problem.name === 'AbortError') continue;
      if (!(problem instanceof Trouble)) { desk.running = false; throw problem; }
      trouble(problem.message);
      if (desk.number === now) desk.settled = now;
    }
  }
  desk.running = false;
}

async function answerOne(now, asked) {
  const question = questionNow();
  const current = () => now === desk.number;
  if (desk.graph) {
    const graph = await asked('graph', graphNow());
    if (!current() || graph.superseded) return;
    if (graph.error) { showProblem(graph.error); return; }
    desk.graph = false;
    showGraph(graph);
  }
  const answer = await asked('plan', question);
  if (!current() || answer.superseded) return;
  if (answer.error) { showProblem(answer.error); return; }
  showAnswer(answer);
  byId('better').textContent = '';
  if (answer.against.length === answer.listed.length) return;
  const all = await asked('against', question);
  if (!current() || all.superseded || all.error) return;
  showAgainst(all.against, answer);
  byId('better').textContent = all.best_edges;
}
