//! The picture of the host, and the same in words: the tree, the matrix of paths, islands, and where sources disagree.

use super::{
    super::{map::PATHS, page::cut, tree},
    Cell, facts,
    markup::Markup,
    pair_table, picture, table,
};
use crate::model::{
    pair::OrderedPair,
    report::Report,
    snapshot::{Origin, Snapshot},
};
use tree::Node;

pub(super) fn write(report: &Report, m: &mut Markup) {
    let snapshot = &report.snapshot;
    if snapshot.gpus.is_empty() {
        let text = match &snapshot.origin {
            Origin::Live => "No NVIDIA GPU was found on this host.",
            Origin::Recorded { .. } => "The input shows no NVIDIA GPU.",
        };
        m.leaf("p", &[], text);
        return;
    }
    disagreements(snapshot, m);
    picture::write(report, m);
    let islands = snapshot.topology.islands.iter().map(|island| {
        let gpus: Vec<String> = island.gpus.iter().map(ToString::to_string).collect();
        (
            "island",
            format!("GPUs {} by {}", gpus.join(" "), cut(&island.joined_by, 40)),
        )
    });
    let class = &snapshot.topology.class;
    let reason = &snapshot.topology.class_reason;
    let mut rows = vec![("fabric class", format!("{class}: {reason}"))];
    rows.extend(islands);
    rows.extend(snapshot.topology.notes.iter().map(|n| ("note", n.clone())));
    facts(m, rows);
    m.element("details", &[], |m| {
        m.leaf(
            "summary",
            &[],
            "The same in words: tree and matrix of paths",
        );
        let (root, levels) = tree::build(snapshot);
        m.element("ul", &[], |m| {
            for node in &root.children {
                branch(node, m);
            }
        });
        if !snapshot.nvswitches.is_empty() {
            let list: Vec<String> = snapshot
                .nvswitches
                .iter()
                .map(ToString::to_string)
                .collect();
            m.leaf(
                "p",
                &[],
                &format!("NVSwitches ({}): {}", list.len(), list.join(" ")),
            );
        }
        let untold = tree::untold(snapshot, &levels);
        if !untold.is_empty() {
            let text = format!("Not told by any source: {}.", untold.join(", "));
            m.leaf("p", &[("class", "doubt")], &text);
        }
        paths(snapshot, m);
    });
}

fn branch(node: &Node, m: &mut Markup) {
    m.element("li", &[], |m| {
        m.text(&node.text);
        if !node.children.is_empty() {
            m.element("ul", &[], |m| {
                for child in &node.children {
                    branch(child, m);
                }
            });
        }
    });
}

fn disagreements(snapshot: &Snapshot, m: &mut Markup) {
    let all = &snapshot.topology.disagreements;
    if all.is_empty() {
        return;
    }
    m.leaf(
        "h3",
        &[("class", "doubt")],
        "Sources disagree: read this before the picture",
    );
    let rows = all.iter().map(|one| {
        let claims: Vec<String> = one
            .claims
            .iter()
            .map(|(s, c)| format!("{s}: {c}"))
            .collect();
        vec![
            ("", one.about.clone()),
            ("", claims.join("; ")),
            ("", one.resolution.clone()),
        ]
    });
    table(
        m,
        "Where sources differ",
        &["about", "who says what", "followed"],
        rows,
    );
}

fn paths(snapshot: &Snapshot, m: &mut Markup) {
    if snapshot.gpus.len() < 2 {
        return;
    }
    let gpus: Vec<u32> = (0..snapshot.gpus.len() as u32).collect();
    let caption = "What lies between GPUs, in nvidia-smi's words; claimed, not proven";
    pair_table(m, caption, &gpus, |source, destination| {
        let path =
            OrderedPair::new(source, destination).and_then(|p| snapshot.topology.pairs.get(p));
        let label = path.map_or_else(|| "n/a".to_string(), |p| p.label());
        Cell {
            class: "plain",
            more: format!("{source}->{destination}: {label}"),
            text: label,
        }
    });
    let used = |word: &str| {
        snapshot
            .topology
            .pairs
            .iter()
            .any(|(_, p)| p.label() == word)
    };
    let mut rows: Vec<(&str, String)> = Vec::new();
    if snapshot.topology.pairs.iter().any(|(_, p)| p.nvlinks > 0) {
        rows.push(("NV#", "# NVLinks, direct or through NVSwitch".to_string()));
    }
    let names = PATHS.map(|(path, words)| (path.to_string(), words));
    for (name, words) in names.iter().filter(|(name, _)| used(name)) {
        rows.push((name, (*words).to_string()));
    }
    facts(m, rows);
}
