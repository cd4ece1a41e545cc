// Numbers as text. Epsilons are rounded up in the fourth digit, as everywhere in DECOR.

function number(value) { return value === 'inf' ? Infinity : value; }

function trimmed(text) {
  const [digits, exponent] = text.split('e');
  const short = digits.includes('.') ? digits.replace(/\.?0+$/, '') : digits;
  return exponent === undefined ? short : `${short}e${exponent}`;
}

function significant(value, count) {
  if (value === 0) return '0';
  const power = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(count)))));
  const text = power < -4 || power >= count ? value.toExponential(count - 1) : value.toPrecision(count);
  return trimmed(text).replace(/e([+-])(\d)$/, 'e$10$2');
}

function fourDigits(value) { return significant(value, 4); }

function roundedUp(epsilon) {
  const value = number(epsilon);
  if (!Number.isFinite(value)) return '∞';
  if (Math.abs(value) < 1e-290) return fourDigits(value);
  const unit = 10 ** (Math.floor(Math.log10(Math.abs(value))) - 3);
  return fourDigits(Math.ceil((value / unit) * (1 - 1e-9)) * unit);
}

// As `value_text` of text.py.
function shown(metric, value) {
  const plain = Math.abs(value) >= 10 ** (1 - metric.decimals) && Math.abs(value) < 1e5;
  return (plain ? value.toFixed(metric.decimals) : significant(value, 3)).replace(/^-/, '−');
}

function counted(value) { return value.toLocaleString('en'); }

function listed(names) {
  return names.length > 8 ? `${names.slice(0, 8).join(', ')} and ${names.length - 8} more` : names.join(', ');
}
