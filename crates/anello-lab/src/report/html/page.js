(() => {
  const root = document.documentElement;
  root.classList.add('script');
  const keep = value => { try { localStorage.setItem('anello-theme', value); } catch (e) { /* a file may have no storage */ } };
  const kept = () => { try { return localStorage.getItem('anello-theme') || 'auto'; } catch (e) { return 'auto'; } };
  const button = document.getElementById('theme');
  const theme = value => {
    if (value === 'auto') { root.removeAttribute('data-theme'); } else { root.setAttribute('data-theme', value); }
    button.querySelector('span').textContent = value;
  };
  const order = ['auto', 'light', 'dark'];
  let now = order.includes(kept()) ? kept() : 'auto';
  theme(now);
  button.addEventListener('click', () => { now = order[(order.indexOf(now) + 1) % 3]; theme(now); keep(now); });

  document.querySelectorAll('section.run').forEach(run => {
    const style = document.head.appendChild(document.createElement('style'));
    const boxes = [...run.querySelectorAll('.legend input')];
    const update = () => {
      style.textContent = boxes.filter(box => !box.checked)
        .map(box => `#${run.id} .c${box.dataset.c}{display:none}`).join('');
    };
    boxes.forEach(box => box.addEventListener('change', update));
    run.querySelectorAll('[data-show]').forEach(all => all.addEventListener('click', () => {
      boxes.forEach(box => { box.checked = all.dataset.show === 'all'; });
      update();
    }));
    const focus = run.appendChild(document.createElement('style'));
    const nameOf = target => {
      const found = target.closest && target.closest('g.s, .legend label');
      if (!found) { return null; }
      const box = found.querySelector('input');
      return box ? 'c' + box.dataset.c : [...found.classList].find(name => /^c\d+$/.test(name));
    };
    run.addEventListener('pointerover', event => {
      const name = nameOf(event.target);
      focus.textContent = name ? `#${run.id} svg g.s:not(.${name}){opacity:.13}` : '';
    });
  });

  document.querySelectorAll('.save').forEach(save => save.addEventListener('click', async () => {
    const packed = atob(document.getElementById(save.dataset.raw).textContent);
    const bytes = Uint8Array.from(packed, sign => sign.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    const json = await new Response(unpacked).text();
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([json], { type: 'application/json' }));
    link.download = 'anello-lab.json';
    link.click();
    URL.revokeObjectURL(link.href);
  }));
  addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(one => { one.open = true; }));
})();
