//! All-reduces: time against bytes, this program's algorithms beside NCCL's arms, and where the one overtakes the other. A
//! sum that was wrong has no time here; it is named below the curves.

use super::{
    super::{
        outcomes::{decimals, particulars, spread},
        page::{count, cut, size},
    },
    mark,
    markup::Markup,
    table,
};
use crate::model::{
    measurement::{Measurement, Unit},
    reduction::{Arrangement, Dtype, Launch, Reduction},
    report::Report,
};
use crate::stats::median;
use std::collections::{BTreeMap, BTreeSet};

/// Groups of curves at most; the report file has every all-reduce.
const MOST_CHARTS: usize = 12;
/// Charts that stand open.
const OPEN: usize = 2;
const WIDTH: f64 = 780.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;

/// What one chart compares: everything but algorithm and bytes is the same.
type Key<'a> = (&'a [u32], Arrangement, Dtype, Launch, bool);

/// Bytes and median microseconds, by bytes.
type Curve<'a> = BTreeMap<u64, (f64, &'a Measurement)>;

fn is_nccl(algorithm: &str) -> bool {
    algorithm == "nccl" || algorithm.starts_with("nccl-")
}

fn micros(time: &Measurement) -> Option<f64> {
    let middle = median(&time.samples).filter(|m| *m > 0.0)?;
    match time.unit {
        Unit::Us => Some(middle),
        Unit::Ms => Some(middle * 1e3),
        Unit::GbPerS => None,
    }
}

pub(super) fn write(report: &Report, m: &mut Markup) {
    let mut groups: Vec<(Key<'_>, Vec<&Reduction>)> = Vec::new();
    for one in &report.reductions {
        let key = (
            one.gpus.as_slice(),
            one.arrangement,
            one.dtype,
            one.launch,
            one.in_place,
        );
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, list)) => list.push(one),
            None => groups.push((key, vec![one])),
        }
    }
    if groups.is_empty() {
        return;
    }
    for (at, (key, list)) in groups.iter().take(MOST_CHARTS).enumerate() {
        if at < OPEN {
            m.leaf("h3", &[], &title(key));
            chart(report, at, key, list, m);
        } else {
            m.element("details", &[], |m| {
                m.leaf("summary", &[], &title(key));
                chart(report, at, key, list, m);
            });
        }
    }
    if groups.len() > MOST_CHARTS {
        let more = count(groups.len() - MOST_CHARTS, "more group");
        m.leaf(
            "p",
            &[],
            &format!("{more} of all-reduces in the report file."),
        );
    }
}

fn title((gpus, arrangement, dtype, launch, in_place): &Key<'_>) -> String {
    let names: Vec<String> = gpus.iter().map(u32::to_string).collect();
    let place = if *in_place {
        "in place"
    } else {
        "out of place"
    };
    format!(
        "{} ranks (GPUs {}), {}, {dtype}, {}, {place}",
        gpus.len(),
        names.join(" "),
        arrangement.words(),
        launch.name()
    )
}

fn chart(report: &Report, number: usize, key: &Key<'_>, list: &[&Reduction], m: &mut Markup) {
    let mut curves: BTreeMap<(bool, &str), Curve<'_>> = BTreeMap::new();
    for one in list.iter().filter(|r| r.outcome.is_intact()) {
        if let Some(time) = &one.time
            && let Some(middle) = micros(time)
        {
            let name = (is_nccl(&one.algorithm), one.algorithm.as_str());
            curves
                .entry(name)
                .or_default()
                .insert(one.bytes, (middle, time));
        }
    }
    if curves.is_empty() {
        m.leaf("p", &[], "No time was taken.");
    } else {
        let crossings = crossings(&curves);
        let words = crossing_words(&curves, &crossings);
        figure(report, number, key, &curves, &crossings, &words, m);
        numbers(&curves, m);
    }
    particular(list, m);
}

/// Fastest of one side at each size.
fn best<'a>(
    curves: &BTreeMap<(bool, &'a str), Curve<'_>>,
    nccl: bool,
) -> BTreeMap<u64, (f64, &'a str)> {
    let mut all: BTreeMap<u64, (f64, &str)> = BTreeMap::new();
    for ((_, name), curve) in curves.iter().filter(|((side, _), _)| *side == nccl) {
        for (bytes, (time, _)) in curve {
            let known = all.entry(*bytes).or_insert((*time, name));
            if *time < known.0 {
                *known = (*time, name);
            }
        }
    }
    all
}

/// Where the faster side changes, in bytes, by straight lines between sizes on the logarithmic scales of the chart; and
/// whether NCCL is the faster one above.
fn crossings(curves: &BTreeMap<(bool, &str), Curve<'_>>) -> Vec<(f64, bool)> {
    let (own, nccl) = (best(curves, false), best(curves, true));
    let lead: Vec<(f64, f64)> = own
        .iter()
        .filter_map(|(bytes, (time, _))| {
            let other = nccl.get(bytes)?.0;
            Some(((*bytes as f64).ln(), (time / other).ln()))
        })
        .collect();
    lead.windows(2)
        .filter_map(|two| {
            let [(x, a), (y, b)] = two else { return None };
            // A tie is no change of hands.
            if a.signum() == b.signum() || *a == 0.0 || *b == 0.0 {
                return None;
            }
            let share = a / (a - b);
            Some(((x + share * (y - x)).exp(), *b > 0.0))
        })
        .collect()
}

fn crossing_words(curves: &BTreeMap<(bool, &str), Curve<'_>>, crossings: &[(f64, bool)]) -> String {
    let (own, nccl) = (best(curves, false), best(curves, true));
    let common: Vec<u64> = own
        .keys()
        .filter(|b| nccl.contains_key(b))
        .copied()
        .collect();
    let (Some(first), Some(last)) = (common.first(), common.last()) else {
        return match (own.is_empty(), nccl.is_empty()) {
            (_, true) => "NCCL was not timed here: nothing to compare with.".to_string(),
            (true, _) => "Only NCCL was timed here.".to_string(),
            _ => "No size was timed for both.".to_string(),
        };
    };
    let faster = |bytes: &u64| match (own.get(bytes), nccl.get(bytes)) {
        (Some(a), Some(b)) if a.0 < b.0 => a.1,
        (_, Some(b)) => b.1,
        _ => "neither",
    };
    if crossings.is_empty() {
        let name = cut(faster(first), 32);
        return format!(
            "No crossover from {} to {}: {name} is the faster side at {}.",
            size(*first),
            size(*last),
            if common.len() == 1 {
                "the one size".to_string()
            } else {
                format!("all {} sizes", common.len())
            }
        );
    }
    let words: Vec<String> = crossings
        .iter()
        .map(|(bytes, nccl_above)| {
            let side = if *nccl_above {
                "NCCL"
            } else {
                "peerproof's own algorithms"
            };
            format!(
                "above about {} {side} {} faster",
                size(bytes.round() as u64),
                if *nccl_above { "is" } else { "are" }
            )
        })
        .collect();
    format!(
        "Crossover: {}. At {} the fastest is {}, at {} {}.",
        words.join("; "),
        size(*first),
        cut(faster(first), 32),
        size(*last),
        cut(faster(last), 32)
    )
}

/// From values to places.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn over(curves: &BTreeMap<(bool, &str), Curve<'_>>) -> Scale {
        let points = || {
            curves
                .values()
                .flat_map(|c| c.iter().map(|(b, (t, _))| (*b as f64, *t)))
        };
        let least = |pick: fn((f64, f64)) -> f64| points().map(pick).fold(f64::INFINITY, f64::min);
        let most = |pick: fn((f64, f64)) -> f64| points().map(pick).fold(0.0, f64::max);
        let widened = |low: f64, high: f64| {
            if high / low < 2.0 {
                (low / 1.5, high * 1.5)
            } else {
                (low, high)
            }
        };
        let (low, high) = widened(least(|p| p.1), most(|p| p.1));
        Scale {
            x: widened(least(|p| p.0), most(|p| p.0)),
            y: (low / 1.2, high * 1.2),
        }
    }

    fn at_x(&self, bytes: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (bytes / self.x.0).ln() / (self.x.1 / self.x.0).ln()
    }

    fn at_y(&self, time: f64) -> f64 {
        let share = (time / self.y.0).ln() / (self.y.1 / self.y.0).ln();
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
    }

    /// Powers of two, few enough to be read.
    fn sizes(&self) -> Vec<u64> {
        let all: Vec<u64> = (0..63)
            .map(|bit| 1u64 << bit)
            .filter(|b| (self.x.0 * 0.99..=self.x.1 * 1.01).contains(&(*b as f64)))
            .collect();
        let step = all.len().div_ceil(8).max(1);
        all.into_iter().step_by(step).collect()
    }

    /// 1, 2 and 5 of each decade.
    fn times(&self) -> Vec<f64> {
        let decades = (-3..10).flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(power)));
        let all: Vec<f64> = decades
            .filter(|t| (self.y.0..=self.y.1).contains(t))
            .collect();
        if all.len() <= 9 {
            return all;
        }
        all.into_iter()
            .filter(|t| (t.log10() - t.log10().round()).abs() < 1e-9)
            .collect()
    }
}

fn n(value: f64) -> String {
    format!("{value:.1}")
}

fn line(m: &mut Markup, class: &str, d: &str) {
    m.void("path", &[("class", class), ("d", d)]);
}

/// Shapes tell series apart where colours cannot.
fn shape(series: usize, x: f64, y: f64) -> String {
    let at = |dx: f64, dy: f64| format!("M{} {}", n(x + dx), n(y + dy));
    match series % 7 {
        0 => format!("{}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", at(-4.0, 0.0)),
        1 => format!("{}h8v8h-8z", at(-4.0, -4.0)),
        2 => format!("{}l5 9h-10z", at(0.0, -5.0)),
        3 => format!("{}l5 5l-5 5l-5 -5z", at(0.0, -5.0)),
        4 => format!("{}l5 -9h-10z", at(0.0, 5.0)),
        5 => format!("{}h10m-5 -5v10", at(-5.0, 0.0)),
        _ => format!("{}l8 8m0 -8l-8 8", at(-4.0, -4.0)),
    }
}

fn figure(
    report: &Report,
    number: usize,
    key: &Key<'_>,
    curves: &BTreeMap<(bool, &str), Curve<'_>>,
    crossings: &[(f64, bool)],
    words: &str,
    m: &mut Markup,
) {
    let scale = Scale::over(curves);
    let (title_id, desc_id) = (
        format!("chart-{number}-title"),
        format!("chart-{number}-desc"),
    );
    let labels = format!("{title_id} {desc_id}");
    let view = format!("0 0 {WIDTH} {HEIGHT}");
    let (w, h) = (WIDTH.to_string(), HEIGHT.to_string());
    m.element("figure", &[], |m| {
        m.element(
            "div",
            &[
                ("class", "scroll"),
                ("tabindex", "0"),
                ("role", "group"),
                ("aria-label", "Curves of time against bytes"),
            ],
            |m| {
                let attributes = [
                    ("role", "img"),
                    ("aria-labelledby", labels.as_str()),
                    ("style", "min-width:560px"),
                    ("width", w.as_str()),
                    ("height", h.as_str()),
                    ("viewBox", view.as_str()),
                ];
                m.element("svg", &attributes, |m| {
                    m.leaf(
                        "title",
                        &[("id", &title_id)],
                        &format!("All-reduce, {}", title(key)),
                    );
                    m.leaf("desc", &[("id", &desc_id)], words);
                    axes(&scale, m);
                    if let Some((word, _)) = mark(report) {
                        text(m, "strong", LEFT + 6.0, TOP - 12.0, word);
                    }
                    for (bytes, _) in crossings {
                        let x = scale.at_x(*bytes);
                        line(
                            m,
                            "crossing",
                            &format!("M{} {}V{}", n(x), n(TOP), n(HEIGHT - BOTTOM)),
                        );
                        text(
                            m,
                            "small middle",
                            x,
                            TOP - 4.0,
                            &format!("crossover {}", size(bytes.round() as u64)),
                        );
                    }
                    series(curves, &scale, m);
                });
            },
        );
        m.leaf("figcaption", &[], words);
    });
}

fn text(m: &mut Markup, class: &str, x: f64, y: f64, words: &str) {
    m.leaf(
        "text",
        &[("class", class), ("x", &n(x)), ("y", &n(y))],
        words,
    );
}

fn axes(scale: &Scale, m: &mut Markup) {
    let (right, floor) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for bytes in scale.sizes() {
        let x = scale.at_x(bytes as f64);
        line(m, "grid", &format!("M{} {}V{}", n(x), n(TOP), n(floor)));
        text(m, "small middle dim", x, floor + 16.0, &size(bytes));
    }
    for time in scale.times() {
        let y = scale.at_y(time);
        line(m, "grid", &format!("M{} {}H{}", n(LEFT), n(y), n(right)));
        text(m, "small end dim", LEFT - 6.0, y + 4.0, &time.to_string());
    }
    line(
        m,
        "axis",
        &format!("M{} {}V{}H{}", n(LEFT), n(TOP), n(floor), n(right)),
    );
    text(
        m,
        "small middle",
        f64::midpoint(LEFT, right),
        floor + 36.0,
        "bytes of one rank's vector (logarithmic)",
    );
    text(m, "small", 4.0, TOP - 12.0, "us a call");
}

fn series(curves: &BTreeMap<(bool, &str), Curve<'_>>, scale: &Scale, m: &mut Markup) {
    let sizes = sizes_of(curves);
    // Names at the right end, moved apart where curves end close together.
    let mut names: Vec<(f64, usize)> = curves
        .values()
        .enumerate()
        .filter_map(|(at, curve)| Some((scale.at_y(curve.values().next_back()?.0), at)))
        .collect();
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = TOP;
    let mut placed: BTreeMap<usize, f64> = BTreeMap::new();
    for (y, at) in names {
        let y = y.max(free);
        placed.insert(at, y);
        free = y + 15.0;
    }
    for (at, ((nccl, name), curve)) in curves.iter().enumerate() {
        let class = if *nccl { "other" } else { "own" };
        let points: Vec<(f64, f64)> = curve
            .iter()
            .map(|(bytes, (time, _))| (scale.at_x(*bytes as f64), scale.at_y(*time)))
            .collect();
        // No line leads across a size that was not timed, or not right.
        let mut d = String::new();
        let mut joined = false;
        for bytes in &sizes {
            let point = curve.get(bytes);
            if let Some((time, _)) = point {
                let (x, y) = (scale.at_x(*bytes as f64), scale.at_y(*time));
                let step = if joined { "L" } else { "M" };
                d.push_str(&format!("{step}{} {}", n(x), n(y)));
            }
            joined = point.is_some();
        }
        m.element("g", &[], |m| {
            let dashes = if *nccl { "7 4" } else { "none" };
            m.void(
                "path",
                &[("class", class), ("stroke-dasharray", dashes), ("d", &d)],
            );
            let dots = format!("{class} dot");
            for ((x, y), (bytes, (_, time))) in points.iter().zip(curve) {
                m.element(
                    "path",
                    &[("class", &dots), ("d", &shape(at, *x, *y))],
                    |m| {
                        let told = format!(
                            "{}, {}: {} {}",
                            cut(name, 32),
                            size(*bytes),
                            spread(&time.samples),
                            time.unit.name()
                        );
                        m.leaf("title", &[], &told);
                    },
                );
            }
            if let (Some(y), Some((x, own))) = (placed.get(&at), points.last()) {
                let start = WIDTH - RIGHT + 12.0;
                line(
                    m,
                    "guide",
                    &format!("M{} {}L{} {}", n(x + 5.0), n(*own), n(start - 2.0), n(*y)),
                );
                line(m, &dots, &shape(at, start + 6.0, *y));
                text(m, "small", start + 16.0, y + 4.0, &cut(name, 26));
            }
        });
    }
}

fn sizes_of(curves: &BTreeMap<(bool, &str), Curve<'_>>) -> BTreeSet<u64> {
    curves.values().flat_map(|c| c.keys().copied()).collect()
}

/// The curves as numbers.
fn numbers(curves: &BTreeMap<(bool, &str), Curve<'_>>, m: &mut Markup) {
    let sizes = sizes_of(curves);
    let mut columns = vec!["bytes".to_string()];
    columns.extend(curves.keys().map(|(_, name)| cut(name, 32)));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let rows = sizes.into_iter().map(|bytes| {
        let fastest = curves
            .values()
            .filter_map(|c| c.get(&bytes))
            .map(|(t, _)| *t)
            .fold(f64::INFINITY, f64::min);
        let mut row = vec![("", size(bytes))];
        row.extend(curves.values().map(|curve| match curve.get(&bytes) {
            None => ("none", "n/a".to_string()),
            Some((time, _)) => {
                let mark = if *time <= fastest { " *" } else { "" };
                ("number", format!("{}{mark}", decimals(*time, *time)))
            }
        }));
        row
    });
    table(
        m,
        "Microseconds a call, median; * = the fastest of its row; n/a = not timed, or not right",
        &columns,
        rows,
    );
}

/// What went wrong, which transport NCCL took, and remarks; those that say the same together.
fn particular(list: &[&Reduction], m: &mut Markup) {
    let mut said: Vec<(String, Vec<u64>)> = Vec::new();
    let mut say = |text: String, bytes: u64| match said.iter_mut().find(|(known, _)| *known == text)
    {
        Some((_, sizes)) => sizes.push(bytes),
        None => said.push((text, vec![bytes])),
    };
    for one in list {
        let name = cut(&one.algorithm, 32);
        if let Some(what) = particulars(&one.outcome) {
            say(format!("\u{2716} {name}: {what}"), one.bytes);
        }
        if let Some(transport) = &one.transport {
            say(
                format!("{name}: transport {}", cut(transport, 64)),
                one.bytes,
            );
        }
        let caveats = one.time.as_ref().map_or(&[][..], |t| t.caveats.as_slice());
        for note in one.notes.iter().chain(caveats) {
            say(format!("{name}: {note}"), one.bytes);
        }
    }
    if said.is_empty() {
        return;
    }
    m.element("ul", &[], |m| {
        for (what, mut sizes) in said {
            sizes.sort_unstable();
            sizes.dedup();
            let at = match sizes.as_slice() {
                [] => String::new(),
                [one] => format!(" ({})", size(*one)),
                [first, .., last] => format!(
                    " ({} sizes, {} to {})",
                    sizes.len(),
                    size(*first),
                    size(*last)
                ),
            };
            m.leaf("li", &[], &format!("{what}{at}"));
        }
    });
}
