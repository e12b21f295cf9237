(() => {
  'use strict';
  const root = document.documentElement;
  root.classList.add('script');
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const json = element => JSON.parse(element.textContent);
  const charts = new Map();

  // Files may have no storage.
  const stored = (...value) => { try { return value.length ? localStorage.setItem('anello-theme', value[0]) : localStorage.getItem('anello-theme'); } catch { return null; } };
  const themes = ['auto', 'light', 'dark'];
  const button = document.getElementById('theme');
  const setTheme = theme => {
    root.dataset.theme = theme;
    button.querySelector('span').textContent = theme;
    charts.forEach(chart => chart.redraw(false));
  };
  button.addEventListener('click', () => {
    const theme = themes[(themes.indexOf(root.dataset.theme) + 1) % 3];
    setTheme(theme);
    stored(theme);
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => setTheme(root.dataset.theme));

  /** Returns the current value of a CSS variable as a colour that a canvas accepts. */
  const colour = (name, element) => {
    const probe = element.appendChild(document.createElement('i'));
    probe.style.color = `var(--${name})`;
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  const short = value => {
    const [size, unit] = value >= 1e6 ? [1e6, 'M'] : value >= 1e3 ? [1e3, 'k'] : [1, ''];
    return +(value / size).toPrecision(3) + unit;
  };

  /** Moves sorted positions apart so that labels of this height do not overlap between top and bottom. */
  const spreadOut = (places, height, top, bottom) => {
    places.forEach(place => { place.at = Math.max(place.at, top); top = place.at + height; });
    places.reverse().forEach(place => { place.at = Math.min(place.at, bottom); bottom = place.at - height; });
  };

  const build = figure => {
    const data = json(figure.querySelector('script'));
    const looks = json(figure.closest('.run').querySelector('.looks'));
    const look = series => looks[series.contender];
    const logarithmic = data.y_marks.length > 0;
    const few = data.series.length <= 6;
    const points = data.x.length <= data.x_marks.length;
    const measure = document.createElement('canvas').getContext('2d');
    measure.font = '600 12px system-ui, sans-serif';
    const right = Math.max(...data.series.map(series => measure.measureText(series.name).width)) + 34;
    const [first, last] = [data.x[0], data.x[data.x.length - 1]];
    const margin = Math.max((last - first) * 0.04, 1e-3);
    const tip = figure.appendChild(document.createElement('div'));
    tip.className = 'tip';
    let focus = null;

    const draw = chart => {
      const { ctx, bbox } = chart, ratio = devicePixelRatio;
      const at = (x, y) => [chart.valToPos(x, 'x', true), chart.valToPos(Math.min(Math.max(y, data.y_range[0]), data.y_range[1]), 'y', true)];
      ctx.save();
      ctx.textBaseline = 'middle';
      ctx.setLineDash([]);
      const ends = [];
      data.series.forEach((series, index) => {
        if (!chart.series[index + 1].show) return;
        const { is_strong: strong, marker } = look(series);
        ctx.globalAlpha = focus === null || focus === index + 1 ? 1 : 0.15;
        ctx.strokeStyle = ctx.fillStyle = colour('c' + series.contender, figure);
        ctx.textAlign = 'center';
        ctx.font = `${(strong ? 12 : 10) * ratio}px system-ui, sans-serif`;
        let end = null;
        data.x.forEach((x, point) => {
          if (series.y[point] === null) return;
          end = at(x, series.y[point]);
          const spread = series.spread[point];
          if (spread && (few || strong || focus === index + 1)) {
            const [from, to] = [at(x, spread[0]), at(x, spread[1])];
            ctx.lineWidth = ratio;
            ctx.beginPath();
            ctx.moveTo(...from);
            ctx.lineTo(...to);
            ctx.stroke();
          }
          if (points) ctx.fillText(marker, ...end);
        });
        if (end) ends.push({ at: end[1], series, strong, index });
      });
      ends.sort((left, right) => left.at - right.at);
      spreadOut(ends, 14 * ratio, bbox.top, bbox.top + bbox.height);
      ctx.textAlign = 'left';
      ends.forEach(({ at, series, strong, index }) => {
        ctx.globalAlpha = focus === null || focus === index + 1 ? 1 : 0.3;
        ctx.font = `${strong ? 600 : 400} ${12 * ratio}px system-ui, sans-serif`;
        ctx.fillStyle = colour('c' + series.contender, figure);
        ctx.fillText(look(series).marker, bbox.left + bbox.width + 8 * ratio, at);
        ctx.fillStyle = colour('fg', figure);
        ctx.fillText(series.name, bbox.left + bbox.width + 22 * ratio, at);
      });
      ctx.restore();
    };

    /** Draws the range within which identical servers lie. */
    const drawFloor = chart => {
      const { ctx, bbox } = chart;
      const known = data.floor.map((floor, point) => [data.x[point], floor]).filter(([, floor]) => floor !== null);
      if (!known.length) return;
      const edge = (x, y) => [chart.valToPos(x, 'x', true), Math.min(Math.max(chart.valToPos(Math.max(y, 1e-9), 'y', true), bbox.top), bbox.top + bbox.height)];
      ctx.save();
      ctx.fillStyle = colour('band', figure);
      ctx.beginPath();
      const ends = [[first - margin, known[0][1]], ...known, [last + margin, known[known.length - 1][1]]];
      ends.forEach(([x, floor]) => ctx.lineTo(...edge(x, 1 + floor)));
      ends.reverse().forEach(([x, floor]) => ctx.lineTo(...edge(x, 1 - floor)));
      ctx.fill();
      ctx.restore();
    };

    const describe = chart => {
      const point = chart.cursor.idx;
      const series = focus === null ? null : data.series[focus - 1];
      tip.hidden = point === null || point === undefined || !series || series.y[point] === null;
      if (tip.hidden) return;
      const spread = series.spread[point];
      const mark = data.x_marks.find(([place]) => place === data.x[point]);
      tip.textContent = `${series.name}${mark ? `, ${mark[1]} ${data.x_title}` : ''}: ${short(series.y[point])}${spread ? ` (${short(spread[0])} to ${short(spread[1])})` : ''}`;
    };

    const height = () => Math.max(250, data.series.length * 14 + 60);
    const chart = new uPlot({
      width: figure.clientWidth - 8,
      height: height(),
      padding: [8, right, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, focus: { prox: 30 }, points: { show: false } },
      focus: { alpha: 0.15 },
      scales: {
        x: { time: false, range: () => [first - margin, last + margin] },
        y: { distr: logarithmic ? 3 : 1, range: () => data.y_range },
      },
      axes: [
        {
          label: data.x_title, labelSize: 20, labelFont: '12px system-ui, sans-serif', font: '12px system-ui, sans-serif', size: 28,
          stroke: () => colour('fg', figure), grid: { show: false }, ticks: { stroke: () => colour('line', figure), size: 4 },
          splits: () => data.x_marks.map(([place]) => place), values: () => data.x_marks.map(([, label]) => label),
        },
        {
          size: 46, font: '12px system-ui, sans-serif', stroke: () => colour('muted', figure), grid: { stroke: () => colour('grid', figure), width: 1 }, ticks: { show: false },
          ...(logarithmic ? { splits: () => data.y_marks, filter: (_, splits) => splits } : {}),
          values: (_, splits) => splits.map(short),
        },
      ],
      series: [{}, ...data.series.map(series => ({
        label: series.name, spanGaps: true, points: { show: false }, dash: look(series).dash, width: look(series).is_strong ? 2.4 : 1.4,
        stroke: () => colour('c' + series.contender, figure),
        show: shown(figure.closest('.run'), series.contender),
      }))],
      hooks: {
        drawClear: [drawFloor],
        draw: [draw],
        setSeries: [(chart, index, options) => { if (options.focus !== undefined) { focus = index || null; describe(chart); } }],
        setCursor: [describe],
      },
    }, [data.x, ...data.series.map(series => series.y)], figure);
    charts.set(figure, chart);
    chart.lines = data.series;
    new ResizeObserver(() => { if (figure.clientWidth) chart.setSize({ width: figure.clientWidth - 8, height: height() }); }).observe(figure);
  };

  const shown = (run, contender) => run.querySelector(`.legend [data-c="${contender}"]`).checked;
  // Charts are built when they come into view.
  const buildOnce = figure => {
    observer.unobserve(figure);
    if (!charts.has(figure)) build(figure);
  };
  const observer = new IntersectionObserver(
    entries => entries.filter(entry => entry.isIntersecting).forEach(entry => buildOnce(entry.target)), { rootMargin: '400px' });
  setTheme(themes.includes(stored()) ? stored() : 'auto');
  all('figure.chart').forEach(figure => observer.observe(figure));

  all('.run').forEach(run => {
    const style = document.head.appendChild(document.createElement('style'));
    const boxes = all('.legend input', run);
    const update = () => {
      style.textContent = boxes.filter(box => !box.checked).map(box => `#${run.id} tr.c${box.dataset.c}{display:none}`).join('');
      charts.forEach((chart, figure) => {
        if (figure.closest('.run') === run) chart.lines.forEach((series, index) => chart.setSeries(index + 1, { show: shown(run, series.contender) }));
      });
    };
    boxes.forEach(box => box.addEventListener('change', update));
    all('[data-show]', run).forEach(preset => preset.addEventListener('click', () => {
      boxes.forEach(box => { box.checked = preset.dataset.show === 'all'; });
      update();
    }));
    all('select', run).forEach(select => select.addEventListener('change', () => {
      all('.main', run).forEach((pair, index) => { pair.hidden = index !== +select.value; });
    }));
  });

  all('.save').forEach(save => save.addEventListener('click', async () => {
    const bytes = Uint8Array.from(atob(document.getElementById(save.dataset.raw).textContent), character => character.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([await new Response(unpacked).text()], { type: 'application/json' }));
    link.download = 'anello-lab.json';
    link.click();
    URL.revokeObjectURL(link.href);
  }));
  addEventListener('beforeprint', () => {
    all('details').forEach(details => { details.open = true; });
    all('figure.chart').filter(figure => figure.clientWidth).forEach(buildOnce);
  });
})();
