#include "aerie/ui/report_style.h"

namespace aerie::ui {

const char kReportStyle[] = R"(<style>
:root{--ink:#1b2330;--soft:#56637a;--line:#dde3ea;--paper:#fff;--card:#f6f8fa;--accent:#1f6feb;
--good:#1a7f4b;--bad:#c62a41;--raw:.4;
--c0:#1f6feb;--c1:#d9730d;--c2:#1a7f4b;--c3:#8250df;--c4:#cf3f55;--c5:#0f8a8a;--c6:#9a6700;--c7:#bf3989}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#a3b0be;--line:#303a47;--paper:#0f141a;
--card:#171d25;--accent:#6cb0ff;--good:#56d492;--bad:#ff8092;--raw:.6;
--c0:#6cb0ff;--c1:#ffab5e;--c2:#56d492;--c3:#c297ff;--c4:#ff8092;--c5:#4fd1d1;--c6:#e3b341;--c7:#ff8bd0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1360px;padding:24px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:32px 0 10px}
.sub{color:var(--soft);margin:0 0 14px}
.health,.verdict{border-left:4px solid var(--accent);background:var(--card);padding:10px 16px;margin:0 0 10px}
.health{font-size:17px}.health b{color:var(--accent)}
.health.good{border-color:var(--good)}.health.good b{color:var(--good)}
.health.bad{border-color:var(--bad)}.health.bad b{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:12px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:20px}.tile span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr));gap:14px}
.chart{margin:0;min-width:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px 8px}
figcaption{font-size:14px;margin-bottom:8px}
.unit,.key{color:var(--soft);font-size:12px}.key{margin-left:8px;white-space:nowrap}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:4px}
.plot{position:relative;height:190px;margin:0 16px 22px 52px;touch-action:pan-y}
.plot svg{width:100%;height:100%;display:block;overflow:visible}
.plot path{fill:none;vector-effect:non-scaling-stroke}
.plot .grid{stroke:var(--line);stroke-width:1}
.plot .raw{stroke-width:1;opacity:var(--raw)}
.plot .line{stroke-width:2;stroke-linejoin:round}
.plot .dashed{stroke-dasharray:6 4}
.plot .dots{stroke-width:6;stroke-linecap:round}
.plot .marker{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 3}
.x,.y{position:absolute;color:var(--soft);font-size:11px;line-height:1;white-space:nowrap}
.x{top:100%;margin-top:6px;transform:translateX(-50%)}
.y{right:100%;margin-right:6px;transform:translateY(-50%)}
.cursor{position:absolute;top:0;bottom:0;border-left:1px solid var(--soft);pointer-events:none}
.tip{position:absolute;top:4px;z-index:1;max-width:100%;padding:4px 8px;border:1px solid var(--line);border-radius:6px;background:var(--paper);font-size:12px;line-height:1.35;white-space:nowrap;pointer-events:none}
.tip i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:5px}
[hidden]{display:none!important}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
th,.word{white-space:nowrap}
.text{overflow-wrap:anywhere;min-width:11em}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;overflow:auto;font-size:13px}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,620px),1fr));gap:14px;margin:0 0 12px}
.picture{margin:0;min-width:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.picture img{display:block;width:100%;height:auto;border-radius:4px}
.picture figcaption{overflow-wrap:anywhere}
code{font-size:13px}
summary{cursor:pointer;color:var(--accent)}
@media (max-width:600px){body{padding:14px}.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}.tile{padding:8px 10px}.tile b{font-size:17px}.plot{margin-left:46px}}
</style>)";

const char kReportScript[] = R"(<script>
document.querySelectorAll('.chart').forEach(chart=>{
  const plot=chart.querySelector('.plot'),tip=chart.querySelector('.tip'),cursor=chart.querySelector('.cursor');
  const x0=+chart.dataset.x0,x1=+chart.dataset.x1;let series=null;
  const nearest=(xs,x)=>{let a=0,b=xs.length-1;while(b-a>1){const m=(a+b)>>1;if(xs[m]<x)a=m;else b=m}
    return Math.abs(xs[a]-x)<=Math.abs(xs[b]-x)?a:b};
  const text=v=>v===null?'not finite':v!==0&&(Math.abs(v)>=1e6||Math.abs(v)<1e-3)?v.toExponential(3):String(+v.toPrecision(5));
  const hide=()=>{tip.hidden=cursor.hidden=true};
  const show=event=>{
    series=series||JSON.parse(chart.dataset.series);
    const names=chart.dataset.names&&JSON.parse(chart.dataset.names);
    const box=plot.getBoundingClientRect(),at=Math.min(1,Math.max(0,(event.clientX-box.left)/box.width)),x=x0+at*(x1-x0);
    tip.textContent='';
    let best=null;
    for(const s of series){const i=nearest(s.x,x);if(best===null||Math.abs(s.x[i]-x)<Math.abs(best-x))best=s.x[i]}
    const head=document.createElement('b');head.textContent=names?names[best]:'step '+best;tip.append(head);
    for(const s of series){
      const i=nearest(s.x,best),row=document.createElement('div'),mark=document.createElement('i');
      mark.style.background='var(--c'+s.c+')';
      row.append(mark,s.n+' '+text(s.y[i])+(s.s?', smoothed '+text(s.s[i]):'')+(s.x[i]!==best?' (step '+s.x[i]+')':''));
      tip.append(row)}
    const left=(best-x0)/(x1-x0)*box.width;
    tip.hidden=cursor.hidden=false;cursor.style.left=left+'px';
    tip.style.left=Math.max(-40,Math.min(left+8,box.width-tip.offsetWidth))+'px'};
  plot.addEventListener('pointermove',show);plot.addEventListener('pointerdown',show);
  plot.addEventListener('pointerleave',hide);
});
</script>)";

}  // namespace aerie::ui
