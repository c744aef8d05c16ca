//! Words beside the tables: what links should carry and which cases do not, what has no numbers, doubts, another tool's
//! numbers.

use super::{Told, View, mark, number, tone};
use crate::{
    model::{
        case::Outcome,
        traffic::{Band, Caveat, ComparedCell, Comparison, Expectation, Traffic},
    },
    render::page::{Tone, count, cut},
    stats::median,
};

/// Longest list of cases by name.
const LISTED: usize = 10;

impl View<'_> {
    pub(super) fn expectations(&self, told: &mut Told) {
        let judged: Vec<(&Traffic, &Expectation)> = self
            .traffic
            .iter()
            .filter_map(|case| Some((case, case.expected.as_ref()?)))
            .collect();
        if judged.is_empty() {
            return;
        }
        told.heading(
            "Against the links: ! below the usual, !! far below, ^ above what the link can carry",
        );
        let mut kinds: Vec<(String, usize)> = Vec::new();
        for (case, e) in &judged {
            // The link without the number of its GPU.
            let link = e.link.split(" of GPU").next().unwrap_or(&e.link);
            let text = format!(
                "{}, {} by {}: usual {}, warning below {}, failure below {}, at most {} GB/s ({})",
                link,
                case.shape.words(),
                case.executor.words(),
                number(e.typical),
                number(e.warn_below),
                number(e.fail_below),
                number(e.ceiling),
                e.class
            );
            match kinds.iter_mut().find(|(known, _)| *known == text) {
                Some((_, n)) => *n += 1,
                None => kinds.push((text, 1)),
            }
        }
        for (text, n) in kinds {
            told.line(Tone::Plain, format!("{}: {text}", count(n, "case")));
        }
        let off: Vec<&(&Traffic, &Expectation)> = judged
            .iter()
            .filter(|(_, e)| e.band != Band::Usual)
            .collect();
        for (case, e) in off.iter().take(LISTED) {
            let rate = median(&case.whole).map_or("n/a".to_string(), number);
            let text = format!(
                "{} {} {} by {}: {rate} GB/s, usual {} ({})",
                mark(Some(e)),
                case.subject(),
                case.way.name(),
                case.executor.words(),
                number(e.typical),
                e.link
            );
            told.line(tone(Some(e)), &text);
        }
        if off.len() > LISTED {
            told.line(Tone::Faint, format!("and {} more", off.len() - LISTED));
        }
    }

    /// What has no numbers, by reason.
    pub(super) fn gaps(&self, told: &mut Told) {
        let mut reasons: Vec<(Tone, String, usize)> = Vec::new();
        for case in self.traffic {
            let (tone, text) = match &case.outcome {
                Outcome::Intact => continue,
                Outcome::NotRun { reason } => (Tone::Doubt, format!("not run: {reason}")),
                Outcome::NotApplicable { reason } => {
                    (Tone::Faint, format!("not applicable: {reason}"))
                }
                Outcome::Refused { api, code, name } => (
                    Tone::Doubt,
                    format!("refused: {api} answered {code} ({name})"),
                ),
                Outcome::Corrupt(corruption) => (
                    Tone::Bad,
                    format!(
                        "{} {}: {}",
                        case.subject(),
                        corruption.kind,
                        corruption.detail
                    ),
                ),
                other => (
                    Tone::Bad,
                    format!(
                        "{} {}: {}",
                        case.subject(),
                        case.shape.words(),
                        other.word()
                    ),
                ),
            };
            match reasons.iter_mut().find(|(_, known, _)| *known == text) {
                Some((_, _, n)) => *n += 1,
                None => reasons.push((tone, text, 1)),
            }
        }
        if reasons.is_empty() {
            return;
        }
        told.heading("Without numbers");
        for (tone, text, n) in reasons.iter().take(LISTED) {
            told.line(*tone, format!("{}: {text}", count(*n, "case")));
        }
        if reasons.len() > LISTED {
            let more = format!("and {} more reasons", reasons.len() - LISTED);
            told.line(Tone::Faint, &more);
        }
    }

    pub(super) fn caveats(&self, told: &mut Told) {
        let mut kinds: Vec<(&'static str, usize, String)> = Vec::new();
        for case in self.traffic {
            for caveat in &case.caveats {
                let (kind, detail) = (caveat.words(), particulars(caveat));
                match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                    Some((_, n, _)) => *n += 1,
                    None => kinds.push((
                        kind,
                        1,
                        format!("{} {}: {detail}", case.subject(), case.shape.words()),
                    )),
                }
            }
        }
        if kinds.is_empty() {
            return;
        }
        told.heading("Doubts");
        for (kind, n, first) in kinds {
            let text = format!("{kind}: {}, first {first}", count(n, "case"));
            told.line(Tone::Doubt, &text);
        }
    }
}

/// Particulars of a doubt.
fn particulars(caveat: &Caveat) -> String {
    match caveat {
        Caveat::ClockChanged {
            gpu,
            before_mhz,
            after_mhz,
        } => format!("GPU{gpu} {before_mhz} MHz before, {after_mhz} after"),
        Caveat::LinkChanged { gpu, before, after } => {
            format!("GPU{gpu} {before} before, {after} after")
        }
        Caveat::LinkUnread { gpu } => format!("GPU{gpu}: nothing is expected of its link"),
        Caveat::OtherProcesses { gpu, processes } => match processes {
            1 => format!("1 process on GPU{gpu}"),
            many => format!("{many} processes on GPU{gpu}"),
        },
        Caveat::FewSamples { samples } => samples.to_string(),
        Caveat::WideSpread { percent } => format!("{percent:.0}% of the median"),
        Caveat::Outliers { samples, first } => {
            let first = match first {
                true => ", the first one among them",
                false => "",
            };
            format!("{samples}{first}")
        }
        Caveat::GateExpired { samples } => {
            format!("{} dropped", count(*samples as usize, "sample"))
        }
        Caveat::HostIncluded => "the driver needs the host to carry it".to_string(),
    }
}

pub(super) fn compared(comparison: &Comparison, told: &mut Told) {
    told.heading(format!("Beside {}", comparison.tool));
    told.line(Tone::Faint, &comparison.their_method);
    told.line(Tone::Faint, &comparison.our_method);
    let mut tests: Vec<(&str, Vec<&ComparedCell>)> = Vec::new();
    for cell in &comparison.cells {
        match tests.iter_mut().find(|(name, _)| *name == cell.testcase) {
            Some((_, cells)) => cells.push(cell),
            None => tests.push((&cell.testcase, vec![cell])),
        }
    }
    if tests.is_empty() {
        told.line(Tone::Doubt, "no number of its is one of ours");
    }
    for (name, cells) in tests {
        let percents: Vec<f64> = cells.iter().map(|cell| cell.percent).collect();
        let middle = median(&percents).unwrap_or(0.0);
        let far = cells
            .iter()
            .max_by(|a, b| a.percent.abs().total_cmp(&b.percent.abs()));
        let far = far.map_or(String::new(), |cell| {
            format!(
                "; farthest {}: theirs {}, ours {} ({:+.1}%)",
                cell.subject,
                number(cell.theirs),
                number(cell.ours),
                cell.percent
            )
        });
        let text = format!(
            "{}: {}, ours {middle:+.1}% in the median{far}",
            cut(name, 50),
            count(cells.len(), "cell")
        );
        told.line(Tone::Plain, &text);
    }
    for line in &comparison.left_out {
        told.line(Tone::Faint, line);
    }
}
