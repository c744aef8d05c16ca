//! What runs at once: the same flows on three kinds of streams, and against what their single flows promised.

use super::{Told, View, number};
use crate::{
    model::traffic::{Executor, Shape, Streams, Traffic, Way},
    render::{
        matrix::{Cell, Matrix},
        page::{Tone, cut},
    },
    stats::median,
};

/// The figures that made the stream question one: 8 GPUs on PCIe 5, both directions at once (founding document of CuPy's
/// DeviceGroup): legacy null stream, non-blocking streams.
const PUBLISHED: (f64, f64) = (20.7, 37.3);

impl<'a> View<'a> {
    /// Name of a row about a shape: groups and kinds of flows apart.
    fn label(case: &Traffic) -> String {
        let between = match (case.shape, case.flows.first().and_then(|f| f.pair())) {
            (Shape::AllGather, _) => format!(" per receiver, G={}", case.gpus().len()),
            (Shape::BothDirections, None) => ", host and GPU".to_string(),
            (Shape::BothDirections, Some(_)) => ", two GPUs".to_string(),
            _ => String::new(),
        };
        format!("{}{between}", case.shape.words())
    }

    /// Concurrent cases by row, in their order.
    fn concurrent(&self) -> Vec<(String, Executor, Vec<&'a Traffic>)> {
        let mut rows: Vec<(String, Executor, Vec<&Traffic>)> = Vec::new();
        for case in self.traffic.iter().filter(|c| c.shape.is_concurrent()) {
            let label = Self::label(case);
            let way = if case.way == Way::Pull { " pull" } else { "" };
            let label = format!("{label}{way}");
            match rows
                .iter_mut()
                .find(|(known, executor, _)| *known == label && *executor == case.executor)
            {
                Some((_, _, cases)) => cases.push(case),
                None => rows.push((label, case.executor, vec![case])),
            }
        }
        rows
    }

    pub(super) fn streams(&self, told: &mut Told) {
        let mut rows = Vec::new();
        let mut between: Option<(f64, f64)> = None;
        for (label, executor, cases) in self.concurrent() {
            let of = |kind: Streams| {
                let medians = cases.iter().filter(|c| c.streams == kind);
                let medians: Vec<f64> = medians.filter_map(|c| median(&c.whole)).collect();
                median(&medians)
            };
            let (Some(free), null) = (of(Streams::NonBlocking), of(Streams::LegacyNull)) else {
                continue;
            };
            let Some(null) = null else {
                continue;
            };
            if label == "both directions, two GPUs" && executor != Executor::Multiprocessors {
                between = Some((free, null));
            }
            let value = |value: Option<f64>, tone| match value {
                Some(value) => Cell::Value {
                    text: number(value),
                    code: None,
                    tone,
                    number: Some(value),
                },
                None => Cell::Missing,
            };
            let lost = (1.0 - null / free) * 100.0;
            let tone = if lost > 10.0 {
                Tone::Doubt
            } else {
                Tone::Plain
            };
            rows.push((
                label,
                vec![
                    value(Some(free), Tone::Plain),
                    value(of(Streams::PerThread), Tone::Plain),
                    value(Some(null), Tone::Plain),
                    Cell::Value {
                        text: format!("{lost:.0}%"),
                        code: None,
                        tone,
                        number: None,
                    },
                ],
            ));
        }
        if rows.is_empty() {
            return;
        }
        told.heading("The stream question: the same flows on three kinds of streams, GB/s of all flows together");
        let matrix = Matrix {
            corner: "at once".to_string(),
            columns: ["non-blocking", "per-thread", "legacy null", "null loses"]
                .map(str::to_string)
                .to_vec(),
            rows,
            even: false,
            diagonal: "-",
        };
        told.table(matrix);
        let Some((free, null)) = between else {
            return;
        };
        let text = format!(
            "A framework that copies on the legacy null stream gets {} of {} GB/s in both directions between two GPUs here: it loses \
             {:.0}%. Published for 8 GPUs on PCIe 5: {} of {} GB/s.",
            number(null),
            number(free),
            (1.0 - null / free) * 100.0,
            PUBLISHED.0,
            PUBLISHED.1
        );
        told.line(Tone::Plain, &text)
    }

    pub(super) fn shapes(&self, told: &mut Told) {
        let mut rows = Vec::new();
        let mut worst: Option<(&Traffic, f64)> = None;
        for (label, executor, cases) in self.concurrent() {
            let free: Vec<&Traffic> = cases
                .into_iter()
                .filter(|c| c.streams == Streams::NonBlocking)
                .collect();
            let measured = |case: &&Traffic| Some((median(&case.whole)?, case.promised));
            let all: Vec<(f64, Option<f64>)> = free.iter().filter_map(measured).collect();
            let rates: Vec<f64> = all.iter().map(|(rate, _)| *rate).collect();
            let promises: Vec<f64> = all.iter().filter_map(|(_, promise)| *promise).collect();
            let Some(rate) = median(&rates) else {
                continue;
            };
            let kept = |case: &&Traffic| Some(median(&case.whole)? / case.promised?);
            let least = free
                .iter()
                .filter_map(|case| Some((*case, kept(case)?)))
                .min_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((case, share)) = least
                && worst.is_none_or(|(_, before)| share < before)
            {
                worst = Some((case, share));
            }
            let who = match executor {
                Executor::CopyEngine => "CE",
                Executor::Multiprocessors => "SM",
                Executor::Staged => "staged",
            };
            let text = |text: Option<String>| match text {
                Some(text) => Cell::Value {
                    text,
                    code: None,
                    tone: Tone::Plain,
                    number: None,
                },
                None => Cell::Missing,
            };
            let shares: Vec<f64> = free.iter().filter_map(kept).collect();
            rows.push((
                label,
                vec![
                    text(Some(who.to_string())),
                    text(Some(free.len().to_string())),
                    text(Some(number(rate))),
                    text(median(&promises).map(number)),
                    text(median(&shares).map(|share| format!("{:.0}%", share * 100.0))),
                    text(least.map(|(case, share)| {
                        format!("{:.0}% {}", share * 100.0, cut(&case.subject(), 14))
                    })),
                ],
            ));
        }
        // Without single flows there is no promise, and the rates stand above.
        if !self.traffic.iter().any(|case| case.promised.is_some()) {
            return;
        }
        told.heading("At once, against what single flows promised with each link of a GPU counted once: GB/s of all flows, median over the cases");
        let matrix = Matrix {
            corner: "at once".to_string(),
            columns: ["by", "cases", "GB/s", "promised", "kept", "least kept"]
                .map(str::to_string)
                .to_vec(),
            rows,
            even: false,
            diagonal: "-",
        };
        told.table(matrix);
        if let Some((case, share)) = worst.filter(|(_, share)| *share < 0.9) {
            let text = format!(
                "Most is lost by {} ({}): {:.0}% of what its single flows promised. What is missing was lost between the GPUs' own \
                 links: uplinks of switches, root complex, sockets.",
                Self::label(case),
                case.subject(),
                share * 100.0
            );
            told.line(Tone::Doubt, &text);
        }
    }
}
