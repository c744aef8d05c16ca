//! The report as one page that needs nothing else: no script, no font, no picture from anywhere, so that it can be mailed,
//! archived and opened on a machine without a network. It says what the terminal's page says, with pictures and numbers.
//!
//! Nothing is carried by colour alone, every table has headers for its rows and columns, every picture is also told in
//! words, and text of devices and hosts can never become markup (see `markup`). A section is one line of `SECTIONS`; one
//! that has nothing to say leaves no heading behind.

mod causes;
mod curves;
mod failures;
mod matrices;
mod pairs;
mod picture;
mod raw;
mod record;
mod topology;
mod traffic;

use super::markup::{self, Markup};
use super::{
    page::{Tone, banner, cut},
    terminal,
};
use crate::model::report::{Kind, Report};
use std::io::{self, Write};

/// Part of the page.
struct Section {
    /// Anchor.
    id: &'static str,
    /// Heading.
    title: &'static str,
    /// Left out of a report of rates or sums alone, of which it would say that nothing was proven, which nobody asked.
    of_the_ladder: bool,
    /// Writes what belongs below the heading, or nothing.
    write: fn(&Report, &mut Markup),
}

/// The page below the verdict, in the order in which a reader asks: where, why, what exactly, who is hit, what to do,
/// how fast, how much of it is known.
const SECTIONS: [Section; 12] = [
    Section {
        id: "pairs",
        title: "Pairs: rung reached or what went wrong",
        of_the_ladder: true,
        write: pairs::write,
    },
    Section {
        id: "causes",
        title: "Causes, evidence and fix",
        of_the_ladder: true,
        write: causes::write,
    },
    Section {
        id: "topology",
        title: "What joins the GPUs",
        of_the_ladder: false,
        write: topology::write,
    },
    Section {
        id: "failures",
        title: "By rung and mechanism",
        of_the_ladder: true,
        write: failures::write,
    },
    Section {
        id: "consumers",
        title: "Who may rely on it",
        of_the_ladder: true,
        write: causes::consumers,
    },
    Section {
        id: "launch",
        title: "Launch settings to copy",
        of_the_ladder: true,
        write: causes::launch,
    },
    Section {
        id: "rates",
        title: "Rates of pairs, timed alone",
        of_the_ladder: true,
        write: matrices::write,
    },
    Section {
        id: "load",
        title: "Under load",
        of_the_ladder: true,
        write: matrices::under_load,
    },
    Section {
        id: "all-reduce",
        title: "All-reduce: time against bytes",
        of_the_ladder: false,
        write: curves::write,
    },
    Section {
        id: "transfers",
        title: "Timed transfers",
        of_the_ladder: false,
        write: traffic::write,
    },
    Section {
        id: "coverage",
        title: "Coverage: what was tested and what was not",
        of_the_ladder: false,
        write: record::coverage,
    },
    Section {
        id: "host",
        title: "Host, environment and raw numbers",
        of_the_ladder: false,
        write: raw::write,
    },
];

/// Writes `report` as one HTML page.
///
/// # Errors
/// Those of the writer.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut page = Markup::new();
    page.element("html", &[("lang", "en")], |m| {
        m.element("head", &[], |m| head(report, m));
        // The mark stands at the foot of every printed page, too: see the stylesheet.
        let mark = mark(report).map_or("hardware", |(word, _)| word);
        m.element("body", &[("class", mark)], |m| body(report, m));
    });
    out.write_all(b"<!DOCTYPE html>\n")?;
    out.write_all(page.into_text().as_bytes())
}

/// What stood below the driver, if it was no plain hardware.
fn mark(report: &Report) -> Option<(&'static str, &'static str)> {
    banner(report.authenticity).or_else(|| banner(report.snapshot.authenticity))
}

fn host_name(report: &Report) -> String {
    let name = report.snapshot.host.name.known();
    name.map_or_else(|| "unnamed host".to_string(), |n| cut(n, 64))
}

/// The class of a tone.
fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "plain",
        Tone::Strong => "strong",
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Doubt => "doubt",
        Tone::Faint => "none",
    }
}

fn head(report: &Report, m: &mut Markup) {
    m.void("meta", &[("charset", "utf-8")]);
    // Should a hole ever be found in what this page escapes: nothing is loaded and nothing runs.
    m.void(
        "meta",
        &[
            ("http-equiv", "Content-Security-Policy"),
            (
                "content",
                "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
            ),
        ],
    );
    let width = "width=device-width, initial-scale=1";
    m.void("meta", &[("name", "viewport"), ("content", width)]);
    m.void(
        "meta",
        &[("name", "color-scheme"), ("content", "light dark")],
    );
    m.void("meta", &[("name", "referrer"), ("content", "no-referrer")]);
    let mark = mark(report).map_or_else(String::new, |(word, _)| format!("{word} "));
    let word = report.verdict.grading.word();
    let title = format!("{mark}{word}: peerproof on {}", host_name(report));
    m.leaf("title", &[], &title);
    m.stylesheet(include_str!("html/page.css"));
}

fn body(report: &Report, m: &mut Markup) {
    let sections: Vec<(&Section, Markup)> = SECTIONS
        .iter()
        .filter(|section| report.kind() == Kind::Ladder || !section.of_the_ladder)
        .map(|section| {
            let mut part = Markup::new();
            (section.write)(report, &mut part);
            (section, part)
        })
        .filter(|(_, part)| !part.is_empty())
        .collect();
    m.leaf(
        "a",
        &[("class", "skip"), ("href", "#verdict")],
        "To the verdict",
    );
    if let Some((word, meaning)) = mark(report) {
        let attributes = [("class", "mark"), ("role", "note"), ("aria-label", word)];
        m.leaf(
            "div",
            &attributes,
            &format!("{word}: {meaning} This is no report of a real host."),
        );
    }
    m.element("header", &[], |m| {
        m.leaf(
            "h1",
            &[],
            &format!("peerproof report: {}", host_name(report)),
        );
        m.leaf("p", &[("class", "faint")], &terminal::host_line(report));
        let made = format!(
            "tested {}, {:.1} s, peerproof {}",
            cut(&report.started_at, 32),
            report.took_ms / 1e3,
            cut(&report.tool_version, 32)
        );
        m.leaf("p", &[("class", "faint")], &made);
    });
    m.element("main", &[], |m| {
        verdict(report, m);
        m.element("nav", &[("aria-label", "Parts of this report")], |m| {
            m.element("ul", &[], |m| {
                for (section, _) in &sections {
                    let target = format!("#{}", section.id);
                    m.element("li", &[], |m| {
                        m.leaf("a", &[("href", &target)], section.title);
                    });
                }
            });
        });
        for (section, part) in sections {
            let label = format!("{}-title", section.id);
            let attributes = [("id", section.id), ("aria-labelledby", label.as_str())];
            m.element("section", &attributes, |m| {
                m.leaf("h2", &[("id", &label)], section.title);
                m.append(part);
            });
        }
    });
    m.element("footer", &[], |m| {
        m.leaf(
            "p",
            &[],
            "Row = source, column = destination. GB/s is 1e9 bytes a second. n/a = not measured; it is never zero. All that \
             stands here follows from the report file; 'peerproof render FILE --format html' makes this page from it.",
        );
    });
}

fn verdict(report: &Report, m: &mut Markup) {
    let verdict = &report.verdict;
    let tone = class(terminal::tone_of(verdict.grading));
    let sign = match tone {
        "good" => "\u{2714}",
        "bad" => "\u{2716}",
        _ => "\u{25b2}",
    };
    let attributes = [
        ("id", "verdict"),
        ("class", "verdict"),
        ("aria-labelledby", "verdict-title"),
    ];
    let classes = format!("verdict {tone}");
    let attributes = [attributes[0], ("class", classes.as_str()), attributes[2]];
    m.element("section", &attributes, |m| {
        m.element("h2", &[("id", "verdict-title")], |m| {
            m.leaf("span", &[("aria-hidden", "true")], sign);
            m.text(&format!(" {}", verdict.grading.word()));
        });
        if report.interrupted {
            m.element("p", &[("class", "doubt")], |m| {
                m.leaf("strong", &[], "CUT SHORT: ");
                m.text("the run was interrupted; this is what was done until then.");
            });
        }
        m.element("dl", &[("class", "facts")], |m| {
            for (label, text) in [
                ("what", &verdict.headline),
                (terminal::second_line(verdict.grading), &verdict.cause),
                ("next", &verdict.next),
            ] {
                m.leaf("dt", &[], label);
                m.leaf("dd", &[], text);
            }
        });
        let code = verdict.grading.exit_code();
        let text = format!("exit code {code}: {}", terminal::why(report));
        m.leaf("p", &[("class", "mono")], &text);
    });
}

/// Pairs of label and text as a definition list.
fn facts<'a>(m: &mut Markup, rows: impl IntoIterator<Item = (&'a str, String)>) {
    m.element("dl", &[("class", "facts")], |m| {
        for (label, text) in rows {
            m.leaf("dt", &[], label);
            m.leaf("dd", &[], &text);
        }
    });
}

/// What a table is called.
enum Name<'a> {
    /// By a caption of its own.
    Caption(&'a str),
    /// By the heading that stands above it.
    Heading(&'a str),
}

/// A table that scrolls by itself where the page is narrow. `rows` writes what stands below the heads of the columns.
fn grid(
    m: &mut Markup,
    class: &'static str,
    name: &Name<'_>,
    columns: &[&str],
    rows: impl FnOnce(&mut Markup),
) {
    let (Name::Caption(label) | Name::Heading(label)) = name;
    let attributes = [
        ("class", "scroll"),
        ("tabindex", "0"),
        ("role", "group"),
        ("aria-label", *label),
    ];
    m.element("div", &attributes, |m| {
        m.element("table", &[("class", class)], |m| {
            if let Name::Caption(caption) = name {
                m.leaf("caption", &[], caption);
            }
            m.element("thead", &[], |m| {
                m.element("tr", &[], |m| {
                    for column in columns {
                        m.leaf("th", &[("scope", "col")], column);
                    }
                });
            });
            m.element("tbody", &[], rows);
        });
    });
}

/// A table whose first column heads its rows.
fn table<'a>(
    m: &mut Markup,
    caption: &str,
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<(&'a str, String)>>,
) {
    grid(m, "wide", &Name::Caption(caption), columns, |m| {
        for row in rows {
            m.element("tr", &[], |m| {
                for (position, (class, text)) in row.iter().enumerate() {
                    if position == 0 {
                        m.leaf("th", &[("scope", "row")], text);
                    } else {
                        m.leaf("td", &[("class", class)], text);
                    }
                }
            });
        }
    });
}

/// A cell of a table over pairs.
struct Cell {
    class: &'static str,
    /// What stands in it.
    text: String,
    /// What is told on hover, beyond the text.
    more: String,
}

/// A table over pairs: row = source, column = destination.
fn pair_table(m: &mut Markup, caption: &str, gpus: &[u32], cell: impl Fn(u32, u32) -> Cell) {
    let names: Vec<String> = gpus.iter().map(|gpu| format!("GPU{gpu}")).collect();
    let columns: Vec<&str> = ["from \\ to"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    grid(m, "pairs", &Name::Caption(caption), &columns, |m| {
        for (source, name) in gpus.iter().zip(&names) {
            m.element("tr", &[], |m| {
                m.leaf("th", &[("scope", "row")], name);
                for destination in gpus {
                    if source == destination {
                        m.leaf("td", &[("class", "none")], "-");
                        continue;
                    }
                    let Cell { class, text, more } = cell(*source, *destination);
                    m.leaf("td", &[("class", class), ("title", &more)], &text);
                }
            });
        }
    });
}
