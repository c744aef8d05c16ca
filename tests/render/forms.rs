//! The report as HTML and as Markdown: golden pages, well-formedness by an independent parser, text that stays text, and
//! colours that can be read.

use super::hosts::{self, Answer, all_zeroed, corrupt, finding, gap, run};
use insta::assert_snapshot;
use peerproof::{
    model::{
        case::{Outcome, WrongKind},
        finding::Judgement,
        measurement::{Measurement, Unit},
        pair::{GpuIndex, OrderedPair},
        reduction::{Arrangement, Dtype, Launch, Reduction},
        report::{Grading, Report},
    },
    render::{
        format::{Format, ROSTER},
        html, markdown,
    },
};
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeSet;

/// What a page may weigh, bytes.
const MOST_HTML: usize = 600_000;
/// What GitHub takes in an issue, characters.
const MOST_MARKDOWN: usize = 65_536;

/// Elements of a page: none that loads, runs or asks anything.
const ELEMENTS: [&str; 44] = [
    "a",
    "body",
    "caption",
    "circle",
    "code",
    "dd",
    "desc",
    "details",
    "div",
    "dl",
    "dt",
    "figcaption",
    "figure",
    "footer",
    "g",
    "h1",
    "h2",
    "h3",
    "head",
    "header",
    "html",
    "li",
    "main",
    "meta",
    "nav",
    "p",
    "path",
    "pre",
    "rect",
    "section",
    "span",
    "strong",
    "style",
    "summary",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
];

fn page(report: &Report) -> String {
    let mut out = Vec::new();
    html::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn ticket(report: &Report) -> String {
    let mut out = Vec::new();
    markdown::write(report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap()
}

fn intact() -> Answer {
    Box::new(|_, _| Outcome::Intact)
}

/// All-reduces of two own algorithms and two arms of NCCL; the own ones win when small. One of them was wrong.
fn reductions() -> Vec<Reduction> {
    let time = |us: f64| Measurement {
        samples: [0.0, 0.02, -0.01].map(|d| us * (1.0 + d)).to_vec(),
        unit: Unit::Us,
        warmup: 10,
        method: "events around a replayed graph".to_string(),
        caveats: Vec::new(),
    };
    let mut all = Vec::new();
    for power in [10u32, 13, 16, 19, 22] {
        let bytes = 1u64 << power;
        let b = bytes as f64;
        for (algorithm, us) in [
            ("one-shot-pull", 8.0 + b / 20e3),
            ("two-shot-pull", 14.0 + b / 60e3),
            ("nccl", 19.0 + b / 140e3),
            ("nccl-p2p-off", 45.0 + b / 20e3),
        ] {
            let wrong = algorithm == "one-shot-pull" && power == 22;
            all.push(Reduction {
                algorithm: algorithm.to_string(),
                gpus: (0..8).collect(),
                arrangement: Arrangement::ProcessPerGpu,
                dtype: Dtype::Bf16,
                bytes,
                in_place: false,
                launch: Launch::Graph,
                outcome: match wrong {
                    true => Outcome::TimedOut { after_ms: 4000 },
                    false => Outcome::Intact,
                },
                calls: 200,
                time: (!wrong).then(|| time(us)),
                transport: (algorithm == "nccl").then(|| "P2P/CUMEM".to_string()),
                notes: Vec::new(),
            });
        }
    }
    all
}

/// One pair that never ends, in a run that was cut short.
fn cut_short() -> Report {
    let hung = OrderedPair::new(2, 5).unwrap();
    let answer: Answer = Box::new(move |pair, mechanism| match mechanism {
        "sm-load" if pair == hung => Outcome::TimedOut { after_ms: 4000 },
        "sm-load" | "sm-store" if pair.source.0 > 2 => Outcome::NotRun {
            reason: "the run was interrupted".to_string(),
        },
        _ => Outcome::Intact,
    });
    let mut report = run(hosts::nvswitch(), &answer);
    report.interrupted = true;
    report.coverage.not_run = vec![gap("the run was interrupted", 69)];
    report.coverage.seen_fault_rate = None;
    report.selftest = None;
    report.verdict.grading = Grading::Inconclusive;
    report.verdict.headline = "hang: 2->5 by sm-load at rung 3; the run was cut short".to_string();
    report
}

fn sixteen_misrouted() -> Report {
    let answer: Answer =
        Box::new(
            |pair, mechanism| match (mechanism, pair.source.0, pair.destination.0) {
                ("bounce" | "staged", _, _) => Outcome::Intact,
                (_, 3, _) => corrupt(WrongKind::Misrouted, pair),
                ("ce-push", 7, 9) => Outcome::Died {
                    how: "signal 9 (SIGKILL)".to_string(),
                },
                _ => Outcome::Intact,
            },
        );
    let mut report = run(hosts::sixteen(), &answer);
    report.verdict.grading = Grading::Fail;
    report.findings[0] = finding(
        "gpu-alone",
        "GPU3 is not sound by itself",
        Judgement::Indicted,
    );
    report.findings[0].gpus = vec![GpuIndex(3)];
    report
}

fn mirrored() -> Report {
    let answer: Answer = Box::new(|pair, mechanism| match mechanism {
        "ce-push" | "sm-store" if pair.source.0 == 0 => corrupt(WrongKind::Mirrored, pair),
        _ => Outcome::Intact,
    });
    let mut report = run(hosts::virtual_machine(), &answer);
    report.verdict.grading = Grading::Fail;
    report.verdict.worst_pair = OrderedPair::new(0, 1);
    report
}

fn one_gpu() -> Report {
    let mut report = run(hosts::one_gpu(), &intact());
    report.coverage.not_applicable = vec![gap("rungs 1 to 3 need a second GPU", 6)];
    report
}

fn with_reductions() -> Report {
    let mut report = run(hosts::nvswitch(), &intact());
    report.reductions = reductions();
    report
}

fn all_hosts() -> Vec<(&'static str, Report)> {
    vec![
        ("healthy", run(hosts::nvswitch(), &intact())),
        ("zeroed", all_zeroed(hosts::rtx_pro())),
        ("one_gpu", one_gpu()),
        ("vm_mirrored", mirrored()),
        ("sixteen", sixteen_misrouted()),
        ("cut_short", cut_short()),
        ("reductions", with_reductions()),
        ("no_gpu", run(hosts::no_gpu(), &intact())),
    ]
}

/// Pages are long: of most hosts the body without its tables of raw numbers is the golden.
#[test]
fn golden_forms() {
    for (name, report) in all_hosts() {
        let page = page(&report);
        assert!(page.len() < MOST_HTML, "{name}: {} bytes", page.len());
        let body = &page[page.find("<body ").unwrap()..];
        let body = body.split("<section id=\"host\"").next().unwrap();
        assert_snapshot!(format!("html_{name}"), body);
        let text = ticket(&report);
        assert!(text.chars().count() < MOST_MARKDOWN);
        assert_snapshot!(format!("markdown_{name}"), text);
    }
}

fn of<'a>(document: &'a Document<'a>, tag: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    document.descendants().filter(move |n| n.has_tag_name(tag))
}

/// Well-formed, in one language, its headings in order, every header of a table with its scope, every picture with its
/// words, every link to a place of the same page, nothing from elsewhere, no script.
#[test]
fn pages_hold_together() {
    for (name, report) in all_hosts() {
        let page = page(&report);
        assert!(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"));
        let document = parsed(&page);
        let mut ids = BTreeSet::new();
        for node in document.descendants() {
            if let Some(id) = node.attribute("id") {
                assert!(ids.insert(id), "{name}: two of {id}");
            }
            let tag = node.tag_name().name();
            assert!(
                !node.is_element() || ELEMENTS.contains(&tag),
                "{name}: {tag}"
            );
            for attribute in node.attributes() {
                let name = attribute.name();
                assert!(!name.starts_with("on") && name != "src", "{name}");
            }
        }
        for link in of(&document, "a") {
            let target = link.attribute("href").unwrap();
            assert!(
                ids.contains(target.strip_prefix('#').unwrap()),
                "{name}: {target}"
            );
        }
        for word in [
            "http:",
            "https:",
            "url(",
            "@import",
            "javascript:",
            "<script",
        ] {
            assert!(!page.contains(word), "{name}: {word}");
        }
        let mut last = 0;
        for node in document.descendants() {
            let level = match node.tag_name().name() {
                "h1" => 1,
                "h2" => 2,
                "h3" => 3,
                _ => continue,
            };
            assert!(level <= last + 1, "{name}: h{level} after h{last}");
            last = level;
        }
        assert_eq!(of(&document, "h1").count(), 1);
        assert_eq!(of(&document, "main").count(), 1);
        for header in of(&document, "th") {
            assert!(matches!(header.attribute("scope"), Some("row" | "col")));
        }
        for table in of(&document, "table") {
            let rows: Vec<usize> = table
                .descendants()
                .filter(|n| n.has_tag_name("tr"))
                .map(|row| row.children().filter(Node::is_element).count())
                .collect();
            assert!(rows.iter().all(|r| r == &rows[0]), "{name}: {rows:?}");
            assert!(table.children().any(|n| n.has_tag_name("caption")));
        }
        for picture in of(&document, "svg") {
            assert_eq!(picture.attribute("role"), Some("img"));
            for id in picture.attribute("aria-labelledby").unwrap().split(' ') {
                assert!(ids.contains(id), "{name}: {id}");
            }
            numbers_are_numbers(picture);
        }
        for section in of(&document, "section") {
            assert!(ids.contains(section.attribute("aria-labelledby").unwrap()));
        }
    }
}

/// A coordinate that could not be worked out would silently leave a hole in the picture.
fn numbers_are_numbers(picture: Node<'_, '_>) {
    for node in picture.descendants() {
        for attribute in node.attributes() {
            if ["x", "y", "width", "height", "d", "viewBox", "rx"].contains(&attribute.name()) {
                let value = attribute.value();
                assert!(!value.contains("NaN") && !value.contains("inf"), "{value}");
            }
        }
    }
}

fn text_of(node: Node<'_, '_>) -> String {
    node.descendants()
        .filter_map(|n| n.text().filter(|_| n.is_text()))
        .collect()
}

#[test]
fn the_picture_shows_what_is_broken_and_where() {
    let shapes = |report: &Report, class: &str| {
        let page = page(report);
        let document = parsed(&page);
        let found = of(&document, "path").filter(|n| n.attribute("class") == Some(class));
        found.count()
    };
    // Eight GPUs are 28 pairs of two; each of both directions ends in an arrow.
    let zeroed = all_zeroed(hosts::rtx_pro());
    assert_eq!(
        (shapes(&zeroed, "broken"), shapes(&zeroed, "cross")),
        (28, 28)
    );
    assert_eq!(shapes(&zeroed, "tip"), 56);
    let one_way = mirrored();
    assert_eq!(
        (shapes(&one_way, "broken"), shapes(&one_way, "tip")),
        (1, 1)
    );
    let hang = cut_short();
    assert_eq!(
        (shapes(&hang, "broken stopped"), shapes(&hang, "cross")),
        (1, 1)
    );
    let healthy = run(hosts::nvswitch(), &intact());
    assert_eq!(
        (shapes(&healthy, "broken"), shapes(&healthy, "nvlink")),
        (0, 8)
    );
    for (report, cards) in [
        (one_gpu(), 1),
        (one_way, 2),
        (healthy, 8),
        (sixteen_misrouted(), 16),
    ] {
        let page = page(&report);
        let document = parsed(&page);
        let card = |n: &Node<'_, '_>| n.attribute("class").is_some_and(|c| c.starts_with("card"));
        assert_eq!(of(&document, "rect").filter(card).count(), cards);
    }
}

#[test]
fn the_crossover_is_marked_and_told() {
    let page = page(&with_reductions());
    let document = parsed(&page);
    let marks = of(&document, "path").filter(|n| n.attribute("class") == Some("crossing"));
    assert_eq!(marks.count(), 1);
    let told = of(&document, "figcaption")
        .map(text_of)
        .find(|t| t.contains("Crossover"));
    let told = told.unwrap();
    assert!(
        told.contains("NCCL is faster") && told.contains("KiB"),
        "{told}"
    );
    // What hung has no point, and is named.
    assert!(page.contains("one-shot-pull: hang, not finished after 4000 ms"));
}

/// A report of look-alike drivers is marked in its title, at its top, in its pictures, and above its settings.
#[test]
fn a_simulated_report_cannot_be_taken_for_a_real_one() {
    let mut report = all_zeroed(hosts::rtx_pro());
    report.recommendations = vec![hosts::advice()];
    let page = page(&report);
    let document = parsed(&page);
    let title = of(&document, "title").next().map(text_of).unwrap();
    assert!(title.starts_with("SIMULATED FAIL"), "{title}");
    let note = document
        .descendants()
        .find(|n| n.attribute("class") == Some("mark"));
    assert_eq!(note.unwrap().attribute("role"), Some("note"));
    assert!(of(&document, "text").any(|n| n.text() == Some("SIMULATED")));
    assert!(page.contains("SIMULATED: do not launch a real host with this."));
    let text = ticket(&report);
    assert!(text.starts_with("> **SIMULATED**") && text.contains("## SIMULATED: FAIL"));
    let real = run(hosts::nvswitch(), &intact());
    let page = self::page(&real);
    let document = parsed(&page);
    // The stylesheet names the mark; nothing that is read does.
    let read = document.descendants().filter(|n| !n.has_tag_name("style"));
    let marked = |n: Node<'_, '_>| {
        n.children()
            .any(|c| c.is_text() && c.text().is_some_and(|t| t.contains("SIMULATED")))
    };
    assert!(!read.into_iter().any(marked) && !ticket(&real).contains("SIMULATED"));
}

const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "]]><!-- --></style><svg onload='x'>",
    "``` \n# head | cell | `tick` @everyone #1 https://x.example/ [a](b)",
    "\u{1b}[2J\u{202e}\u{ffff}\u{0}",
    "&lt;b&gt; {{7*7}} ${x}",
];

/// Nothing that a device, a file or another host names itself becomes markup, in any place of either form.
#[test]
fn hostile_names_stay_text() {
    for evil in HOSTILE {
        let mut report = all_zeroed(hosts::rtx_pro());
        report.reductions = reductions();
        report.reductions[0].algorithm = evil.to_string();
        report.reductions[1].notes = vec![evil.to_string()];
        report.snapshot.host.kernel_log =
            peerproof::model::reading::Reading::Known(vec![evil.to_string()]);
        report.snapshot.environment = vec![(evil.to_string(), evil.to_string())];
        report.arguments = vec![evil.to_string()];
        report.recommendations = vec![hosts::advice()];
        let mut value = serde_json::to_value(&report).unwrap();
        super::poison(&mut value, evil);
        let report: Report = serde_json::from_value(value).unwrap();

        let page = page(&report);
        let document = parsed(&page);
        for node in document.descendants().filter(Node::is_element) {
            let tag = node.tag_name().name();
            assert!(ELEMENTS.contains(&tag), "{tag}");
            for attribute in node.attributes() {
                assert!(!attribute.name().starts_with("on"), "{}", attribute.name());
            }
        }
        assert!(document.descendants().all(|n| !n.is_comment()));
        let seen = document.descendants().filter_map(|n| n.text()).any(|t| {
            t.contains("alert(1)")
                || t.contains("onload")
                || t.contains("@everyone")
                || t.contains("{{7*7}}")
                || t.contains("u{1b}")
        });
        assert!(seen, "the name is nowhere to be read");
        markdown_stays_text(&ticket(&report));
    }
}

/// Outside fences and code spans: no HTML but our own empty comment, no link, no mention; fences are balanced.
fn markdown_stays_text(text: &str) {
    let mut fence: Option<String> = None;
    for line in text.lines() {
        let ticks: String = line.chars().take_while(|c| *c == '`').collect();
        match &fence {
            Some(open) => {
                if line.trim_end() == open.as_str() {
                    fence = None;
                }
                continue;
            }
            None if ticks.len() >= 3 => {
                fence = Some(ticks);
                continue;
            }
            None => {}
        }
        let outside = without_code(line).replace("<!-- -->", "");
        assert!(!outside.contains('<'), "{line}");
        let comment = without_code(line);
        for word in ["@everyone", "#1 ", "https://"] {
            assert!(!comment.contains(word), "{word}: {line}");
        }
        // "\\](" is a bracket that is text; only one without the backslash closes a link.
        assert!(!comment.replace("\\]", "").contains("]("), "{line}");
        if line.starts_with('|') {
            let cells = outside.replace("\\|", "").matches('|').count();
            assert_eq!(cells, 4, "{line}");
        }
    }
    assert_eq!(fence, None, "a fence is open at the end");
}

/// A line without its code spans, by the rules of CommonMark: a span ends at a run of as many backticks as began it.
fn without_code(line: &str) -> String {
    let characters: Vec<char> = line.chars().collect();
    let run = |at: usize| characters[at..].iter().take_while(|c| **c == '`').count();
    let (mut out, mut at) = (String::new(), 0);
    while at < characters.len() {
        if characters[at] == '\\' {
            out.extend(characters.get(at..(at + 2).min(characters.len())).unwrap());
            at += 2;
            continue;
        }
        let ticks = run(at);
        if ticks == 0 {
            out.push(characters[at]);
            at += 1;
            continue;
        }
        let mut end = at + ticks;
        while end < characters.len() && run(end) != ticks {
            end += run(end).max(1);
        }
        at = if end < characters.len() {
            end + ticks
        } else {
            at + ticks
        };
    }
    out
}

/// A report far larger than an issue takes is cut, and says so.
#[test]
fn a_ticket_never_outgrows_its_place() {
    let mut report = sixteen_misrouted();
    for at in 0..400 {
        let mut one = finding("x", &format!("cause {at}"), Judgement::Indicted);
        one.because = "because ".repeat(400);
        one.evidence = vec!["seen ".repeat(300); 20];
        report.findings.push(one);
    }
    report.coverage.not_run = (0..500)
        .map(|at| gap(&format!("reason {at} {}", "x".repeat(900)), 1))
        .collect();
    report.verdict.cause = "y".repeat(100_000);
    let text = ticket(&report);
    assert!(text.len() < MOST_MARKDOWN, "{}", text.len());
    assert!(text.contains("rows left out to keep this short"));
    assert!(text.contains("### Versions") && text.contains("### Coverage"));
}

fn luminance(hex: &str) -> f64 {
    let channel = |at: usize| {
        let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        if value <= 0.04045 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
}

/// Ratios of WCAG 2: 4.5 for text, 3 for lines that mean something. Light and dark are both in the page's own stylesheet.
#[test]
fn text_has_contrast_in_light_and_dark() {
    let page = page(&one_gpu());
    let style = page
        .split("<style>")
        .nth(1)
        .unwrap()
        .split("</style>")
        .next()
        .unwrap();
    let (light, dark) = style
        .split_once("@media (prefers-color-scheme: dark)")
        .unwrap();
    let dark = dark.split("}\n}").next().unwrap();
    for (theme, css) in [("light", light), ("dark", dark)] {
        let color = |name: &str| {
            let rest = css.split(&format!("--{name}: ")).nth(1).unwrap();
            rest.split(';').next().unwrap().to_string()
        };
        let ratio = |one: &str, other: &str| {
            let (a, b) = (luminance(&color(one)), luminance(&color(other)));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        let text = [
            ("ink", "paper"),
            ("ink", "panel"),
            ("faint", "paper"),
            ("faint", "panel"),
            ("link", "paper"),
            ("link", "panel"),
            ("good", "paper"),
            ("bad", "paper"),
            ("doubt", "paper"),
            ("good", "good-paper"),
            ("bad", "bad-paper"),
            ("doubt", "doubt-paper"),
            ("ink", "good-paper"),
            ("ink", "bad-paper"),
            ("ink", "doubt-paper"),
            ("mark-ink", "mark-paper"),
            ("ink", "heat-1"),
            ("ink", "heat-2"),
            ("ink", "heat-3"),
            ("ink", "heat-4"),
            ("ink", "heat-5"),
        ];
        for (one, other) in text {
            let ratio = ratio(one, other);
            assert!(ratio >= 4.5, "{theme}: {one} on {other} is {ratio:.2}");
        }
        // Shades can be told apart in order.
        for step in 1..5 {
            let (one, next) = (format!("heat-{step}"), format!("heat-{}", step + 1));
            assert!(ratio(&one, &next) > 1.1, "{theme}: {one} and {next}");
        }
    }
}

#[test]
fn forms_are_found_by_name_and_ending() {
    let mut names = BTreeSet::new();
    for entry in &ROSTER {
        assert!(names.insert(entry.name) && !entry.title.is_empty());
        assert_eq!(Format::named(entry.name), Some(entry.format));
        assert_eq!(Format::of_ending(entry.ending), Some(entry.format));
    }
    assert_eq!(Format::named("pdf"), None);
}
