//! Why pairs are broken and what to do; who may rely on them; what to launch engines with.

use super::{
    super::{
        page::cut,
        recommend::{self, must_not_serve},
        terminal,
    },
    class, mark,
    markup::Markup,
    table,
};
use crate::model::{
    finding::{ConsumerState, Finding, Judgement, Recommendation, Severity},
    report::Report,
};

pub(super) fn write(report: &Report, m: &mut Markup) {
    let held = terminal::judged(report, Judgement::Indicted);
    let open = terminal::judged(report, Judgement::CannotTell);
    let cleared = terminal::judged(report, Judgement::Cleared);
    if held.is_empty() && open.is_empty() && cleared.is_empty() {
        return;
    }
    if held.is_empty() {
        m.leaf("p", &[], "No cause is held.");
    }
    for (position, finding) in held.iter().enumerate() {
        indicted(report, position + 1, finding, m);
    }
    if !open.is_empty() {
        m.leaf("h3", &[], "Cannot be told");
        m.element("ul", &[], |m| {
            for finding in open {
                m.element("li", &[], |m| {
                    m.leaf("strong", &[], &cut(&finding.title, 120));
                    m.text(&format!(": {}", finding.because));
                    if let Some(test) = &finding.next_test {
                        m.text("; to tell: ");
                        m.leaf("code", &[], test);
                    }
                });
            }
        });
    }
    if !cleared.is_empty() {
        m.element("details", &[], |m| {
            m.leaf("summary", &[], &format!("Ruled out ({})", cleared.len()));
            m.element("ul", &[], |m| {
                for finding in cleared {
                    m.element("li", &[], |m| {
                        m.leaf("strong", &[], &cut(&finding.title, 120));
                        if !finding.because.trim().is_empty() {
                            m.text(&format!(": {}", finding.because));
                        }
                    });
                }
            });
        });
    }
}

fn indicted(report: &Report, number: usize, finding: &Finding, m: &mut Markup) {
    let tone = match finding.severity {
        Severity::Critical => "cause bad",
        Severity::Warning => "cause doubt",
        Severity::Info => "cause",
    };
    m.element("div", &[("class", tone)], |m| {
        m.leaf(
            "h3",
            &[],
            &format!("{number}. {}", cut(&finding.title, 120)),
        );
        let sure = format!(
            "{}, {}",
            terminal::severity_word(finding.severity),
            terminal::confidence_word(finding.confidence)
        );
        m.element("dl", &[("class", "facts")], |m| {
            let mut row = |label: &str, text: &str| {
                m.leaf("dt", &[], label);
                m.leaf("dd", &[], text);
            };
            row("how bad, how sure", &sure);
            row("where", &terminal::place_words(report, finding));
            row("why", &finding.because);
            for (label, class, list) in [
                ("seen", "", &finding.evidence),
                ("fix", "fix", &finding.fix),
            ] {
                if list.is_empty() {
                    continue;
                }
                m.leaf("dt", &[], label);
                m.element("dd", &[("class", class)], |m| {
                    m.element("ul", &[], |m| {
                        for line in list {
                            m.leaf("li", &[], line);
                        }
                    });
                });
            }
            if let Some(test) = &finding.next_test {
                m.leaf("dt", &[], "proof");
                m.element("dd", &[], |m| m.leaf("code", &[], test));
            }
            m.leaf("dt", &[], "more");
            m.element("dd", &[], |m| {
                m.leaf(
                    "code",
                    &[],
                    &format!("peerproof explain {}", cut(&finding.cause, 64)),
                );
            });
        });
    });
}

fn state_word(state: ConsumerState) -> &'static str {
    match state {
        ConsumerState::Proven => "proven",
        ConsumerState::Vetoed => "vetoed",
        ConsumerState::Unproven => "unproven",
        ConsumerState::NotApplicable => "does not apply",
    }
}

pub(super) fn consumers(report: &Report, m: &mut Markup) {
    if report.consumers.is_empty() {
        return;
    }
    let order = [
        ConsumerState::Vetoed,
        ConsumerState::Unproven,
        ConsumerState::Proven,
        ConsumerState::NotApplicable,
    ];
    let rows = order.iter().flat_map(|state| {
        let (sign, tone) = terminal::mark_of(*state);
        let these = report.consumers.iter().filter(|c| c.state == *state);
        these.map(move |one| {
            let needs: Vec<String> = one
                .needs
                .iter()
                .map(|r| {
                    r.number()
                        .map_or_else(|| r.name().to_string(), |n| n.to_string())
                })
                .collect();
            vec![
                ("", cut(&one.name, 48)),
                (class(tone), format!("{sign} {}", state_word(*state))),
                ("", needs.join(" ")),
                ("", one.sentence.clone()),
            ]
        })
    });
    let columns = ["consumer", "state", "rungs it needs", "because"];
    table(
        m,
        "Veto only: one broken pair condemns the group",
        &columns,
        rows,
    );
    let islands = terminal::island_groups(report);
    if islands.is_empty() {
        return;
    }
    m.leaf(
        "h3",
        &[],
        "Parts of the group, for those that the whole group cannot serve",
    );
    m.element("ul", &[], |m| {
        for (island, fared) in &islands {
            let gpus: Vec<String> = island.gpus.iter().map(ToString::to_string).collect();
            m.element("li", &[], |m| {
                let name = format!("GPUs {} ({})", gpus.join(" "), cut(&island.joined_by, 24));
                m.leaf("strong", &[], &name);
                m.element("ul", &[], |m| {
                    for (state, sentence, names) in fared {
                        let (sign, _) = terminal::mark_of(*state);
                        let word = state_word(*state);
                        let text = format!("{sign} {word}: {}: {sentence}", names.join(", "));
                        m.leaf("li", &[], &text);
                    }
                });
            });
        }
    });
}

pub(super) fn launch(report: &Report, m: &mut Markup) {
    if report.recommendations.is_empty() {
        return;
    }
    if let Some((word, _)) = mark(report) {
        m.element("p", &[("class", "bad")], |m| {
            m.leaf(
                "strong",
                &[],
                &format!("{word}: do not launch a real host with this."),
            );
        });
    }
    m.leaf("p", &[("class", "faint")], "A click selects a whole block. Reasons and sizes: 'peerproof recommend --engine ENGINE --model MODEL --from REPORT'.");
    for one in &report.recommendations {
        m.leaf(
            "h3",
            &[],
            &format!("{}: {}", cut(&one.engine, 32), cut(&one.backend_name, 120)),
        );
        if must_not_serve(one) {
            m.leaf(
                "p",
                &[("class", "bad")],
                "\u{2716} There is no setting with which this group may serve.",
            );
        } else {
            settings(one, m);
        }
        if !one.caveats.is_empty() {
            m.element("ul", &[], |m| {
                for caveat in &one.caveats {
                    m.element("li", &[], |m| {
                        m.leaf("span", &[("class", "doubt")], "! ");
                        m.text(caveat);
                    });
                }
            });
        }
        reasons(one, m);
    }
}

fn settings(advice: &Recommendation, m: &mut Markup) {
    let mut before: Vec<String> = advice
        .unset
        .iter()
        .map(|s| format!("unset {}", s.name))
        .collect();
    before.extend(
        advice
            .environment
            .iter()
            .map(|s| format!("export {}", recommend::variable(s))),
    );
    let flags: Vec<String> = advice.flags.iter().map(recommend::flag).collect();
    let omit: Vec<String> = advice.omit.iter().map(|s| s.name.clone()).collect();
    let keys: Vec<String> = advice.configuration.iter().map(recommend::key).collect();
    let blocks = [
        ("before the launch command:", before),
        ("at the end of the launch command:", flags),
        ("not in the launch command:", omit),
        ("in the engine's configuration, or in the program:", keys),
    ];
    if blocks.iter().all(|(_, lines)| lines.is_empty()) {
        m.leaf(
            "p",
            &[],
            "Nothing to add: the engine's defaults fit this host.",
        );
    }
    for (label, lines) in &blocks {
        if lines.is_empty() {
            continue;
        }
        m.leaf("p", &[], label);
        m.element("pre", &[], |m| {
            m.element("code", &[], |m| m.lines(lines.iter().map(String::as_str)));
        });
    }
}

fn reasons(advice: &Recommendation, m: &mut Markup) {
    let all = recommend::all_settings(advice);
    if all.is_empty() && advice.refused.is_empty() {
        return;
    }
    m.element("details", &[], |m| {
        m.leaf(
            "summary",
            &[],
            &format!("Reasons and refused backends, {}", cut(&advice.engine, 32)),
        );
        if !all.is_empty() {
            let rows = all.into_iter().map(|(what, setting)| {
                vec![
                    ("", what),
                    ("", setting.because.clone()),
                    ("", setting.basis.clone()),
                ]
            });
            table(
                m,
                "Why each setting is there",
                &["setting", "why", "basis"],
                rows,
            );
        }
        if !advice.refused.is_empty() {
            let rows = advice
                .refused
                .iter()
                .map(|(backend, why)| vec![("", cut(backend, 48)), ("", why.clone())]);
            table(
                m,
                "Backends considered and refused",
                &["backend", "why"],
                rows,
            );
        }
    });
}
