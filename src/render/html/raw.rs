//! The host as it was read, how the run was set up, and every rate as a number. An absence is printed with its reason and
//! never as zero or "off".

use super::{
    super::{
        evidence::rung_words,
        outcomes::decimals,
        page::{count, cut, size},
        tree,
    },
    facts,
    markup::Markup,
    table,
};
use crate::model::{
    case::Record,
    pci::PcieLink,
    reading::Reading,
    report::Report,
    snapshot::{Gpu, Snapshot},
};
use crate::stats::{mad, median};
use std::fmt::Display;

/// Rows of the table of rates; the report file has all of them.
const MOST_RATES: usize = 400;
/// Lines of the kernel log.
const MOST_LINES: usize = 60;

pub(super) fn write(report: &Report, m: &mut Markup) {
    host(&report.snapshot, m);
    gpus(&report.snapshot, m);
    run(report, m);
    kernel_log(&report.snapshot, m);
    rates(report, m);
    observations(report, m);
}

fn shown<T: Display>(reading: &Reading<T>) -> String {
    told(reading, ToString::to_string)
}

fn told<T>(reading: &Reading<T>, words: impl Fn(&T) -> String) -> String {
    match reading {
        Reading::Known(value) => words(value),
        Reading::Absent(why) => format!("not known: {why}"),
    }
}

fn host(snapshot: &Snapshot, m: &mut Markup) {
    let host = &snapshot.host;
    let driver = &snapshot.driver;
    let list = |names: &Vec<String>| match names.is_empty() {
        true => "none active".to_string(),
        false => names.join(" "),
    };
    let yes = |on: &bool| if *on { "yes" } else { "no" }.to_string();
    m.element("details", &[("open", "open")], |m| {
        m.leaf("summary", &[], "Host and driver");
        facts(
            m,
            [
                ("host", shown(&host.name)),
                (
                    "machine",
                    format!("{}, {}", shown(&host.dmi_vendor), shown(&host.dmi_product)),
                ),
                ("BIOS", shown(&host.bios)),
                ("CPU", shown(&host.cpu_model)),
                ("logical CPUs", shown(&host.logical_cpus)),
                (
                    "memory",
                    told(&host.memory_bytes, |b| size((*b >> 20) << 20)),
                ),
                ("OS", shown(&host.os)),
                ("kernel", shown(&host.kernel)),
                ("kernel command line", shown(&host.cmdline)),
                ("IOMMU", told(&host.iommu_classes, list)),
                ("hypervisor flag", told(&host.hypervisor, yes)),
                (
                    "container",
                    told(&host.container, |c| {
                        c.clone().unwrap_or_else(|| "none seen".to_string())
                    }),
                ),
                ("/dev/shm", told(&host.shm_bytes, |b| size(*b))),
                (
                    "driver",
                    format!("{} ({})", shown(&driver.version), shown(&driver.flavour)),
                ),
                (
                    "CUDA version of the driver",
                    told(&driver.cuda_version, |c| {
                        format!("{}.{}", c / 1000, c % 1000 / 10)
                    }),
                ),
                ("NVML", shown(&driver.nvml_version)),
                (
                    "confidential computing",
                    told(&driver.confidential_computing, yes),
                ),
            ],
        );
    });
}

fn gpus(snapshot: &Snapshot, m: &mut Markup) {
    if snapshot.gpus.is_empty() {
        return;
    }
    let link = |reading: &Reading<PcieLink>| told(reading, tree::link);
    let row = |(at, gpu): (usize, &Gpu)| {
        vec![
            ("", format!("GPU{at}")),
            ("", shown(&gpu.name)),
            ("mono", shown(&gpu.pci)),
            ("mono", shown(&gpu.uuid)),
            ("", told(&gpu.memory_bytes, |b| size(*b))),
            ("", told(&gpu.bar1_bytes, |b| size(*b))),
            (
                "",
                format!("{} / {}", link(&gpu.link_now), link(&gpu.link_max)),
            ),
            ("", told(&gpu.ecc_uncorrected, u64::to_string)),
            (
                "",
                told(&gpu.iommu, |i| {
                    format!("group {}, {}", i.group, shown(&i.domain_type))
                }),
            ),
        ]
    };
    m.element("details", &[], |m| {
        m.leaf(
            "summary",
            &[],
            &format!("GPUs as they were read ({})", snapshot.gpus.len()),
        );
        let columns = [
            "GPU",
            "name",
            "PCI address",
            "UUID",
            "memory",
            "BAR1",
            "PCIe now / at most",
            "uncorrected ECC errors",
            "IOMMU",
        ];
        table(
            m,
            "GPUs in PCI order; the number is a label",
            &columns,
            snapshot.gpus.iter().enumerate().map(row),
        );
    });
}

fn run(report: &Report, m: &mut Markup) {
    m.element("details", &[], |m| {
        m.leaf(
            "summary",
            &[],
            "The run: arguments, environment, sources, times",
        );
        let pairs = |list: &[(String, String)]| match list.is_empty() {
            true => "nothing that steers CUDA, NCCL or visibility".to_string(),
            false => list
                .iter()
                .map(|(n, v)| format!("{n}={v}"))
                .collect::<Vec<_>>()
                .join(" "),
        };
        facts(
            m,
            [
                ("arguments", report.arguments.join(" ")),
                ("environment as found", pairs(&report.snapshot.environment)),
                (
                    "environment of workers",
                    report.worker_environment.join("; "),
                ),
                (
                    "kernels (SHA-256 of the PTX)",
                    report.kernels_sha256.clone(),
                ),
                ("schema version", report.schema_version.to_string()),
                ("whole run", format!("{:.0} ms", report.took_ms)),
            ],
        );
        if !report.timings_ms.is_empty() {
            let rows = report
                .timings_ms
                .iter()
                .map(|(phase, ms)| vec![("", cut(phase, 64)), ("number", format!("{ms:.0}"))]);
            table(m, "Where the time went", &["phase", "ms"], rows);
        }
        if !report.snapshot.sources.is_empty() {
            let rows = report.snapshot.sources.iter().map(|note| {
                let tone = if note.result.known().is_some() {
                    ""
                } else {
                    "doubt"
                };
                let result = match &note.result {
                    Reading::Known(found) => found.clone(),
                    Reading::Absent(why) => format!("not read: {why}"),
                };
                vec![
                    ("", cut(&note.source, 48)),
                    (tone, result),
                    ("number", format!("{:.0}", note.took_ms)),
                ]
            });
            table(
                m,
                "Sources that were asked",
                &["source", "result", "ms"],
                rows,
            );
        }
    });
}

fn kernel_log(snapshot: &Snapshot, m: &mut Markup) {
    let Reading::Known(lines) = &snapshot.host.kernel_log else {
        return;
    };
    if lines.is_empty() {
        return;
    }
    m.element("details", &[], |m| {
        let shown = lines.len().min(MOST_LINES);
        m.leaf(
            "summary",
            &[],
            &format!("Kernel log: {shown} of {}", count(lines.len(), "line")),
        );
        m.element("pre", &[], |m| {
            m.lines(lines.iter().take(MOST_LINES).map(String::as_str))
        });
    });
}

fn rates(report: &Report, m: &mut Markup) {
    let timed: Vec<&Record> = report.records.iter().filter(|r| r.rate.is_some()).collect();
    if timed.is_empty() {
        return;
    }
    let number = |value: Option<f64>| value.map_or_else(|| "n/a".to_string(), |v| decimals(v, v));
    let rows = timed.iter().take(MOST_RATES).filter_map(|record| {
        let rate = record.rate.as_ref()?;
        let least = rate.samples.iter().copied().min_by(f64::total_cmp);
        let most = rate.samples.iter().copied().max_by(f64::total_cmp);
        let traffic = record.case.load.map_or("alone", |load| load.words());
        Some(vec![
            ("", record.case.subject.to_string()),
            ("", cut(&record.case.mechanism, 24)),
            ("", rung_words(record.case.rung)),
            ("", size(record.case.bytes)),
            ("", traffic.to_string()),
            ("number", number(median(&rate.samples))),
            ("number", number(mad(&rate.samples))),
            ("number", number(least)),
            ("number", number(most)),
            ("number", rate.samples.len().to_string()),
            ("", rate.unit.name().to_string()),
        ])
    });
    m.element("details", &[], |m| {
        let shown = timed.len().min(MOST_RATES);
        m.leaf(
            "summary",
            &[],
            &format!(
                "Every rate: {shown} of {}",
                count(timed.len(), "measurement")
            ),
        );
        let columns = [
            "subject",
            "mechanism",
            "rung",
            "bytes",
            "traffic",
            "median",
            "MAD",
            "least",
            "most",
            "samples",
            "unit",
        ];
        table(
            m,
            "Median, median absolute deviation, extremes; single samples are in the report file",
            &columns,
            rows,
        );
    });
}

fn observations(report: &Report, m: &mut Markup) {
    if report.observations.is_empty() {
        return;
    }
    let rows = report.observations.iter().flat_map(|moment| {
        moment.gpus.iter().enumerate().map(move |(at, gpu)| {
            vec![
                ("", cut(&moment.moment, 64)),
                ("", format!("GPU{at}")),
                ("", told(&gpu.link, tree::link)),
                ("", told(&gpu.pcie_replays, u64::to_string)),
                ("", told(&gpu.nvlink_errors, u64::to_string)),
                ("", told(&gpu.ecc_uncorrected, u64::to_string)),
                (
                    "",
                    told(&gpu.aer, |a| {
                        format!("{} {} {}", a.correctable, a.nonfatal, a.fatal)
                    }),
                ),
            ]
        })
    });
    m.element("details", &[], |m| {
        m.leaf("summary", &[], "Counters before, during and after");
        let columns = [
            "moment",
            "GPU",
            "PCIe link",
            "PCIe replays",
            "NVLink errors",
            "uncorrected ECC",
            "AER (correctable, nonfatal, fatal)",
        ];
        table(m, "What the observer saw", &columns, rows);
    });
}
