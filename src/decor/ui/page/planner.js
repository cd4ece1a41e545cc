// How the page begins, and what it does when its window changes.

// a drawing follows the window; a family keeps its own proportions
function redraw() {
  if (!view.root || byId('plan').hidden) return;
  if (state.topology !== DRAWN && drawn.places) drawn.at = fit(drawn.places);
  drawCanvas();
}

function start() {
  document.documentElement.classList.add('scripted');
  restore();
  makeControls();
  makeSketch();
  makeAnswers();
  if (!token) {
    trouble('This page has no token. Open the address that decor ui printed, with all that stands behind the #.');
    showControls();
    showFigures(null);
    return;
  }
  if (state.topology === DRAWN) showSketch();
  showControls();
  showFigures(null);
  remember();
  changed(true);
  makeWatch();
  let width = byId('canvas').clientWidth;
  new ResizeObserver(() => {
    const now = byId('canvas').clientWidth;
    if (now && now !== width) { width = now; redraw(); }
  }).observe(byId('canvas'));
  window.addEventListener('resize', drawWatch);
}

// an address with another token, opened in this very tab, does not load the page by itself
window.addEventListener('hashchange', () => { if (tokenGiven()) window.location.reload(); });
start();
