//! The host as a picture: packages, NUMA nodes, host bridges and switches as boxes in boxes, GPUs and NICs as cards in one
//! row, NVLinks below the cards, and below those every broken pair as an arc with a cross, its arrow at the destination.
//! It draws what sources told and leaves out the levels that none told.

use super::{
    super::{
        outcomes::{self, Seen},
        page::{count, cut, pairs_in_words},
        tree::{self, Kind, Node, gpu_label},
    },
    mark,
    markup::Markup,
};
use crate::model::{
    finding::{Judgement, Severity},
    pair::{GpuIndex, OrderedPair},
    report::Report,
    snapshot::{BridgePort, Snapshot},
};
use std::collections::BTreeMap;

const GPU_WIDTH: f64 = 78.0;
const NIC_WIDTH: f64 = 52.0;
const CARD_HEIGHT: f64 = 50.0;
const GAP: f64 = 6.0;
/// Room for a box's label.
const LABEL: f64 = 20.0;
/// Between a box and what is in it.
const INSET: f64 = 5.0;
/// Width of a character of small text, for cutting labels.
const CHARACTER: f64 = 5.9;
/// More adapters than these are left to the words below the picture.
const MOST_NICS: usize = 24;
/// More direct NVLink pairs than these carry no label of their own.
const MOST_LABELS: usize = 12;

/// A box, or a card.
struct Block {
    label: String,
    short: String,
    told: String,
    kind: Kind,
    children: Vec<Block>,
}

impl Block {
    /// From the tree: bridges that lead to one thing only are no fork and get no box.
    fn of(node: &Node, snapshot: &Snapshot, nics: bool) -> Option<Block> {
        let mut children: Vec<Block> = node
            .children
            .iter()
            .filter_map(|c| Block::of(c, snapshot, nics))
            .collect();
        let card = matches!(node.kind, Kind::Gpu(_) | Kind::Nic(_));
        if matches!(node.kind, Kind::Nic(_)) && !nics || !card && children.is_empty() {
            return None;
        }
        if matches!(node.kind, Kind::Bridge(_)) && children.len() == 1 {
            let mut only = children.remove(0);
            only.told = format!("{} > {}", node.text, only.told);
            return Some(only);
        }
        let first = node.text.split([':', ',']).next().unwrap_or_default();
        let (label, short) = match node.kind {
            Kind::Bridge(address) => {
                let bridge = snapshot.bridge(address);
                let name = match bridge.map(|b| b.port) {
                    Some(BridgePort::Root) => "root port",
                    Some(BridgePort::SwitchUpstream | BridgePort::SwitchDownstream) => "switch",
                    Some(BridgePort::Unknown) | None => "bridge",
                };
                let chip = bridge.and_then(|b| b.chip.as_deref());
                let label = chip.map_or_else(
                    || format!("{name} {address}"),
                    |chip| format!("{name}: {}", cut(chip, 32)),
                );
                (label, name.to_string())
            }
            Kind::HostBridge => {
                let short = node.text.replace("host bridge", "root");
                (node.text.clone(), short)
            }
            _ => (node.text.clone(), first.to_string()),
        };
        Some(Block {
            label,
            short,
            told: node.text.clone(),
            kind: node.kind,
            children,
        })
    }

    fn width(&self) -> f64 {
        match self.kind {
            Kind::Gpu(_) => GPU_WIDTH,
            Kind::Nic(_) => NIC_WIDTH,
            _ => {
                let inner: f64 = self.children.iter().map(Block::width).sum();
                let gaps = GAP * self.children.len().saturating_sub(1) as f64;
                inner + gaps + 2.0 * INSET
            }
        }
    }

    /// Boxes above the deepest card.
    fn depth(&self) -> usize {
        let below = self.children.iter().map(Block::depth).max();
        below.map_or(0, |deepest| deepest + 1)
    }

    /// What fits into `width`.
    fn fitting(&self, width: f64) -> String {
        let room = (width / CHARACTER) as usize;
        let fits = |text: &str| text.chars().count() <= room;
        if fits(&self.label) {
            self.label.clone()
        } else if fits(&self.short) {
            self.short.clone()
        } else {
            cut(&self.short, room.max(3))
        }
    }
}

/// Where things stand.
struct Layout {
    /// Upper edge of the cards.
    cards: f64,
    /// Lower edge of the outermost boxes.
    floor: f64,
    /// Deepest nesting.
    depth: usize,
    /// Middle of each GPU's card.
    middle: BTreeMap<u32, f64>,
}

/// A number with at most one decimal, as attributes carry it.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

/// GPUs with something against them, in words.
fn marked(report: &Report) -> BTreeMap<u32, String> {
    let mut all: BTreeMap<u32, String> = outcomes::gpu_remarks(report)
        .into_iter()
        .map(|(gpu, remarks)| (gpu, remarks.join("; ")))
        .collect();
    let held = report
        .findings
        .iter()
        .filter(|f| f.judgement == Judgement::Indicted && f.severity > Severity::Info);
    for finding in held {
        // A cause of all GPUs marks none of them.
        if finding.gpus.len() >= report.tested_gpus.len() && report.tested_gpus.len() > 1 {
            continue;
        }
        for gpu in &finding.gpus {
            all.entry(gpu.0).or_insert_with(|| finding.title.clone());
        }
    }
    all
}

/// By lower and higher GPU: the directions that are broken, in words, and whether data was wrong.
type Broken = BTreeMap<(u32, u32), Vec<(OrderedPair, String, bool)>>;

/// Pairs that failed, both directions of two GPUs together.
fn broken(report: &Report) -> Broken {
    let mut all: Broken = BTreeMap::new();
    for (pair, seen) in outcomes::climbs(report).seen {
        let Seen::Stopped(record) = seen else {
            continue;
        };
        if !record.outcome.is_failure() {
            continue;
        }
        let (s, d) = (pair.source.0, pair.destination.0);
        let wrong = record.outcome.corruption().is_some();
        let word = record.outcome.word().to_string();
        all.entry((s.min(d), s.max(d)))
            .or_default()
            .push((pair, word, wrong));
    }
    all
}

/// Writes the figure.
pub(super) fn write(report: &Report, m: &mut Markup) {
    let snapshot = &report.snapshot;
    let (root, _) = tree::build(snapshot);
    let nics = snapshot.nics.len() <= MOST_NICS;
    let blocks: Vec<Block> = root
        .children
        .iter()
        .filter_map(|c| Block::of(c, snapshot, nics))
        .collect();
    let depth = blocks.iter().map(Block::depth).max().unwrap_or(0);
    let cards = 26.0 + LABEL * depth as f64;
    let mut layout = Layout {
        cards,
        floor: cards + CARD_HEIGHT + INSET * depth as f64,
        depth,
        middle: BTreeMap::new(),
    };
    let mut boxes = Markup::new();
    let marked = marked(report);
    let mut x = GAP;
    for block in &blocks {
        place(report, block, x, 0, &mut layout, &marked, &mut boxes);
        x += block.width() + GAP;
    }
    let width = x.max(300.0);
    let mut below = Markup::new();
    let links = nvlinks(snapshot, &layout, &mut below);
    let broken = broken(report);
    let height = arcs(&broken, links, &layout, &mut below) + 8.0;

    let failed: Vec<OrderedPair> = broken.values().flatten().map(|(pair, ..)| *pair).collect();
    let all = outcomes::tested_pairs(report).len();
    let told = if failed.is_empty() {
        "No pair is broken as far as was tested.".to_string()
    } else {
        format!("Broken: {}.", pairs_in_words(&failed, all))
    };
    let summary = format!(
        "{}, fabric class {}. {told}",
        count(snapshot.gpus.len(), "GPU"),
        snapshot.topology.class
    );
    m.element("figure", &[], |m| {
        m.element("div", &[("class", "scroll"), ("tabindex", "0"), ("role", "group"), ("aria-label", "Picture of the host")], |m| {
            let (w, h) = (n(width), n(height));
            let view = format!("0 0 {w} {h}");
            // Shrinks with the page, but never until its text is too small to be read.
            let least = format!("min-width:{:.0}px", width * 0.72);
            let attributes = [
                ("role", "img"),
                ("aria-labelledby", "picture-title picture-desc"),
                ("style", least.as_str()),
                ("width", w.as_str()),
                ("height", h.as_str()),
                ("viewBox", view.as_str()),
            ];
            m.element("svg", &attributes, |m| {
                m.leaf("title", &[("id", "picture-title")], "What joins the GPUs, and which pairs are broken");
                m.leaf("desc", &[("id", "picture-desc")], &summary);
                let (word, class) = match mark(report) {
                    Some((word, _)) => (word, "strong"),
                    None => ("claimed by PCI, NUMA and NVML", "small dim"),
                };
                m.leaf("text", &[("x", "8"), ("y", "16"), ("class", class)], word);
                m.append(boxes);
                m.append(below);
            });
        });
        let mut words = summary.clone();
        if !failed.is_empty() {
            words.push_str(
                " An arc with a cross joins the two GPUs of a broken pair, its arrow stands at the destination; a full line is \
                 wrong data, a dashed one a hang, fault or death.",
            );
        }
        if !nics {
            words.push_str(" Network adapters are left to the words below.");
        }
        m.leaf("figcaption", &[], &words);
    });
}

fn rect(m: &mut Markup, class: &str, x: f64, y: f64, width: f64, height: f64) {
    m.void(
        "rect",
        &[
            ("class", class),
            ("x", &n(x)),
            ("y", &n(y)),
            ("width", &n(width)),
            ("height", &n(height)),
            ("rx", "3"),
        ],
    );
}

fn label(m: &mut Markup, class: &str, x: f64, y: f64, text: &str) {
    m.leaf(
        "text",
        &[("class", class), ("x", &n(x)), ("y", &n(y))],
        text,
    );
}

fn path(m: &mut Markup, class: &str, d: &str) {
    m.void("path", &[("class", class), ("d", d)]);
}

fn place(
    report: &Report,
    block: &Block,
    x: f64,
    level: usize,
    layout: &mut Layout,
    marked: &BTreeMap<u32, String>,
    m: &mut Markup,
) {
    let width = block.width();
    match block.kind {
        Kind::Gpu(at) => gpu(report, block, at, x, layout, marked, m),
        Kind::Nic(at) => m.element("g", &[], |m| {
            m.leaf("title", &[], &block.told);
            rect(m, "nic", x, layout.cards, width, CARD_HEIGHT);
            let middle = x + width / 2.0;
            label(
                m,
                "small middle dim",
                middle,
                layout.cards + 20.0,
                &format!("NIC{at}"),
            );
            let name = report
                .snapshot
                .nics
                .get(at)
                .map_or("", |nic| nic.name.as_str());
            label(
                m,
                "small middle dim",
                middle,
                layout.cards + 36.0,
                &cut(name, 8),
            );
        }),
        _ => {
            let top = 26.0 + LABEL * level as f64;
            let inset = INSET * (layout.depth - level.min(layout.depth)) as f64;
            let bottom = layout.cards + CARD_HEIGHT + inset;
            m.element("g", &[], |m| {
                m.leaf("title", &[], &block.told);
                rect(m, "box", x, top, width, bottom - top);
                let room = width - 2.0 * INSET;
                label(m, "small", x + INSET, top + 14.0, &block.fitting(room));
            });
            let mut inner = x + INSET;
            for child in &block.children {
                place(report, child, inner, level + 1, layout, marked, m);
                inner += child.width() + GAP;
            }
        }
    }
}

fn gpu(
    report: &Report,
    block: &Block,
    at: usize,
    x: f64,
    layout: &mut Layout,
    marked: &BTreeMap<u32, String>,
    m: &mut Markup,
) {
    let index = at as u32;
    let middle = x + GPU_WIDTH / 2.0;
    layout.middle.insert(index, middle);
    let tested = report.tested_gpus.contains(&index);
    let against = marked.get(&index);
    let (class, note) = match (against, tested) {
        (Some(why), _) => ("card bad", format!(": {why}")),
        (None, true) => ("card", String::new()),
        (None, false) => ("card out", ": not tested".to_string()),
    };
    let Some(gpu) = report.snapshot.gpu(GpuIndex(index)) else {
        return;
    };
    m.element("g", &[], |m| {
        m.leaf("title", &[], &format!("{}{note}", block.told));
        rect(m, class, x, layout.cards, GPU_WIDTH, CARD_HEIGHT);
        let name = gpu_label(gpu, at);
        let name = if against.is_some() {
            format!("\u{2716} {name}")
        } else {
            name
        };
        let words = if against.is_some() {
            "strong middle bad"
        } else {
            "strong middle"
        };
        label(m, words, middle, layout.cards + 17.0, &cut(&name, 11));
        let bus = gpu.pci.known().map_or_else(
            || "PCI n/a".to_string(),
            |p| format!("{:02x}:{:02x}.{:x}", p.bus, p.device, p.function),
        );
        label(m, "small middle dim", middle, layout.cards + 31.0, &bus);
        let link = gpu
            .link_now
            .known()
            .or(gpu.link_max.known())
            .map(tree::link);
        let foot = match (tested, link) {
            (false, _) => "not tested".to_string(),
            (true, Some(link)) => link,
            (true, None) => String::new(),
        };
        label(
            m,
            "small middle dim",
            middle,
            layout.cards + 44.0,
            &cut(&foot, 12),
        );
    });
}

/// NVLinks below the cards; the lowest line that they take, if there are any.
fn nvlinks(snapshot: &Snapshot, layout: &Layout, m: &mut Markup) -> Option<f64> {
    let top = layout.floor;
    let mut switched: BTreeMap<u32, u32> = BTreeMap::new();
    let mut direct: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for (pair, path) in snapshot
        .topology
        .pairs
        .iter()
        .filter(|(_, p)| p.nvlinks > 0)
    {
        let (s, d) = (pair.source.0, pair.destination.0);
        if path.through_nvswitch {
            let most = switched.entry(s).or_default();
            *most = path.nvlinks.max(*most);
        } else {
            let most = direct.entry((s.min(d), s.max(d))).or_default();
            *most = path.nvlinks.max(*most);
        }
    }
    let mut low = None;
    let ends: Vec<(u32, f64, u32)> = switched
        .iter()
        .filter_map(|(gpu, links)| Some((*gpu, *layout.middle.get(gpu)?, *links)))
        .collect();
    if let (Some(first), Some(last)) = (ends.first(), ends.last()) {
        let bar = top + 26.0;
        for (gpu, x, links) in &ends {
            let told = snapshot.gpu(GpuIndex(*gpu)).and_then(|g| g.nvlinks.known());
            let (up, all) =
                told.map_or((0, 0), |l| (l.iter().filter(|l| l.active).count(), l.len()));
            let short = up < all;
            m.element("g", &[], |m| {
                m.leaf(
                    "title",
                    &[],
                    &format!("GPU{gpu}: {links} NVLinks to NVSwitch"),
                );
                path(
                    m,
                    "nvlink",
                    &format!("M{} {}V{}", n(*x), n(layout.cards + CARD_HEIGHT), n(bar)),
                );
                let (class, text) = if short {
                    ("small bad strong", format!("\u{2716} {up} of {all}"))
                } else {
                    ("small dim", links.to_string())
                };
                label(m, class, x + 4.0, bar - 6.0, &text);
            });
        }
        let (from, to) = (first.1 - GPU_WIDTH / 2.0, last.1 + GPU_WIDTH / 2.0);
        rect(m, "switch", from, bar, to - from, 22.0);
        let known = snapshot.nvswitches.len();
        let name = if known > 0 {
            format!("NVSwitch x {known}")
        } else {
            "NVSwitch".to_string()
        };
        label(
            m,
            "small middle",
            f64::midpoint(from, to),
            bar + 15.0,
            &name,
        );
        low = Some(bar + 22.0);
    }
    if !direct.is_empty() {
        let start = low.unwrap_or(top) + 2.0;
        let slots = slots(layout);
        let mut deepest: f64 = 0.0;
        let labelled = direct.len() <= MOST_LABELS;
        for ((one, other), links) in &direct {
            let (Some(a), Some(b)) = (layout.middle.get(one), layout.middle.get(other)) else {
                continue;
            };
            let (a, b) = (a.min(*b), a.max(*b));
            let reach = distance(&slots, *one, *other);
            let depth = 16.0 + 10.0 * reach;
            deepest = deepest.max(depth);
            let radius = (b - a) / 2.0;
            m.element("g", &[], |m| {
                m.leaf(
                    "title",
                    &[],
                    &format!("GPU{one} and GPU{other}: {links} NVLinks"),
                );
                let from = layout.cards + CARD_HEIGHT;
                let d = format!(
                    "M{} {}V{}A{} {} 0 0 0 {} {}V{}",
                    n(a),
                    n(from),
                    n(start),
                    n(radius),
                    n(depth),
                    n(b),
                    n(start),
                    n(from)
                );
                path(m, "nvlink", &d);
                if labelled {
                    label(
                        m,
                        "small middle",
                        f64::midpoint(a, b),
                        start + depth - 3.0,
                        &format!("NV{links}"),
                    );
                }
            });
        }
        low = Some(start + deepest + 6.0);
    }
    low
}

/// Place of each GPU from left to right.
fn slots(layout: &Layout) -> BTreeMap<u32, usize> {
    let mut order: Vec<(u32, f64)> = layout.middle.iter().map(|(g, x)| (*g, *x)).collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    order
        .into_iter()
        .enumerate()
        .map(|(at, (gpu, _))| (gpu, at))
        .collect()
}

fn distance(slots: &BTreeMap<u32, usize>, one: u32, other: u32) -> f64 {
    let at = |gpu| slots.get(&gpu).copied().unwrap_or(0);
    at(one).abs_diff(at(other)) as f64
}

/// Broken pairs; the lowest line that the picture needs.
fn arcs(broken: &Broken, links: Option<f64>, layout: &Layout, m: &mut Markup) -> f64 {
    let mut start = links.unwrap_or(layout.floor) + 6.0;
    if broken.is_empty() {
        return start;
    }
    let slots = slots(layout);
    // Cards are far above, or boxes lie between: their numbers stand again where the arcs begin.
    start += 16.0;
    for (gpu, x) in &layout.middle {
        let touched = broken.keys().any(|(a, b)| a == gpu || b == gpu);
        if touched {
            let from = links.unwrap_or(layout.cards + CARD_HEIGHT);
            path(
                m,
                "guide",
                &format!("M{} {}V{}", n(*x), n(from), n(start - 14.0)),
            );
            label(m, "small middle strong", *x, start - 3.0, &gpu.to_string());
        }
    }
    // Ends at one GPU stand beside each other in the order that lets arcs nest instead of cross.
    let end = |gpu: u32, other: u32| -> f64 {
        let own = slots.get(&gpu).copied().unwrap_or(0);
        let mut others: Vec<usize> = broken
            .keys()
            .filter_map(|(a, b)| match gpu {
                g if g == *a => slots.get(b).copied(),
                g if g == *b => slots.get(a).copied(),
                _ => None,
            })
            .collect();
        others.sort_by_key(|slot| {
            if *slot < own {
                (0, own - *slot)
            } else {
                (1, usize::MAX - *slot)
            }
        });
        let at = slots
            .get(&other)
            .and_then(|s| others.iter().position(|o| o == s))
            .unwrap_or(0);
        let step = (GPU_WIDTH - 10.0) / others.len().max(1) as f64;
        let step = step.min(16.0);
        let offset = (at as f64 - (others.len() as f64 - 1.0) / 2.0) * step;
        layout.middle.get(&gpu).copied().unwrap_or(0.0) + offset
    };
    let mut deepest: f64 = 0.0;
    for ((one, other), pairs) in broken {
        let (mut a, mut b) = ((*one, end(*one, *other)), (*other, end(*other, *one)));
        if a.1 > b.1 {
            std::mem::swap(&mut a, &mut b);
        }
        let depth = 20.0 + 14.0 * distance(&slots, *one, *other);
        deepest = deepest.max(depth);
        let wrong = pairs.iter().any(|(_, _, wrong)| *wrong);
        let told: Vec<String> = pairs
            .iter()
            .map(|(pair, word, _)| format!("{pair}: {word}"))
            .collect();
        m.element("g", &[], |m| {
            m.leaf("title", &[], &told.join("; "));
            let radius = (b.1 - a.1) / 2.0;
            let class = if wrong { "broken" } else { "broken stopped" };
            let d = format!(
                "M{} {}A{} {} 0 0 0 {} {}",
                n(a.1),
                n(start),
                n(radius),
                n(depth),
                n(b.1),
                n(start)
            );
            path(m, class, &d);
            for (gpu, x) in [a, b] {
                if pairs.iter().any(|(pair, ..)| pair.destination.0 == gpu) {
                    path(m, "tip", &format!("M{} {}l-4 9h8z", n(x), n(start - 1.0)));
                }
            }
            let (x, y) = (f64::midpoint(a.1, b.1), start + depth);
            let d = format!("M{} {}l8 8m0 -8l-8 8", n(x - 4.0), n(y - 4.0));
            path(m, "cross", &d);
        });
    }
    start + deepest + 10.0
}
