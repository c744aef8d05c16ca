//! All-reduces of one process on the GPUs of this machine, as a table: for people who tune the kernels. What a user types
//! is `peerproof reduce`, which runs the same code in a worker under a deadline; this program has none.
//!
//! ```text
//! cargo run --release --example reduce -- --gpus 0,1 --sizes 8K,64K,256K,1M --launch graph,eager
//! cargo run --release --example reduce -- --gpus 0,0 --algorithm one-shot-push --blocks 16 --threads 256
//! ```

#![allow(clippy::print_stdout, missing_docs)]

use peerproof::{
    gpu::{Context, System},
    model::reduction::{Dtype, Launch},
    probe::reduction::{ROSTER, Request, Tuning, exact::Values, group},
    stats,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The value after `--name`, or nothing.
fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|a| a != &format!("--{name}"));
    arguments.nth(1)
}

fn list(name: &str, otherwise: &str) -> Vec<String> {
    let text = option(name).unwrap_or(otherwise.to_string());
    text.split(',').map(str::to_string).collect()
}

fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M']);
    let unit = match text.as_bytes().last()? {
        b'K' => 1 << 10,
        b'M' => 1 << 20,
        _ => 1,
    };
    Some(digits.parse::<u64>().ok()? * unit)
}

fn number(name: &str) -> Option<u64> {
    bytes(&option(name)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let system = System::start()?;
    let devices = system.devices()?;
    let gpus: Vec<u32> = list("gpus", "0,0")
        .iter()
        .map(|g| g.parse())
        .collect::<Result<_, _>>()?;
    let mut contexts: BTreeMap<u32, Arc<Context>> = BTreeMap::new();
    for gpu in &gpus {
        let device = devices.get(*gpu as usize).ok_or("no such GPU")?;
        contexts.insert(*gpu, Context::new(system.driver(), device)?);
    }
    for (a, one) in &contexts {
        for (_, other) in contexts.iter().filter(|(b, _)| *b != a) {
            println!("peer access: {:?}", one.enable_peer(other)?);
        }
    }
    let members: Vec<(u32, Arc<Context>)> = gpus
        .iter()
        .filter_map(|gpu| Some((*gpu, contexts.get(gpu)?.clone())))
        .collect();
    let every: Vec<&str> = ROSTER.iter().map(|a| a.id()).collect();
    let request = Request {
        algorithms: list("algorithm", &every.join(",")),
        dtypes: Dtype::ALL
            .into_iter()
            .filter(|d| list("dtype", "bf16").contains(&d.name().to_string()))
            .collect(),
        sizes: list("sizes", "8K,64K,256K,1M,16M")
            .iter()
            .filter_map(|s| bytes(s))
            .collect(),
        launches: [Launch::Eager, Launch::Graph]
            .into_iter()
            .filter(|l| list("launch", "graph,eager").contains(&l.name().to_string()))
            .collect(),
        in_place: vec![option("place").is_some_and(|p| p == "in")],
        values: match option("values").as_deref() {
            Some("random") => Values::Random,
            _ => Values::Integers,
        },
        calls: number("calls").unwrap_or(200) as u32,
        samples: number("samples").unwrap_or(9) as u32,
        room: number("room").unwrap_or(512 << 20),
        tuning: Tuning {
            blocks: number("blocks").map(|n| n as u32),
            threads: number("threads").map(|n| n as u32),
            words_up_to: number("words"),
        },
        seed: number("seed").unwrap_or(1),
        limit: Duration::from_millis(number("limit-ms").unwrap_or(1000)),
    };
    let begin = std::time::Instant::now();
    group::run(&members, &request, system.deadline_factor(), |row| {
        let us = row.time.as_ref().map(|time| {
            let (low, high) = time
                .samples
                .iter()
                .fold((f64::MAX, 0f64), |(l, h), s| (l.min(*s), h.max(*s)));
            let median = stats::median(&time.samples).unwrap_or(0.0);
            format!("{median:9.2} us ({low:.2} to {high:.2})")
        });
        let detail = row.outcome.corruption().map(|c| c.detail.clone());
        println!(
            "{:15} {:5} {:>9} B {:5} {:8} {} calls {} [{}] {}",
            row.algorithm,
            row.dtype.name(),
            row.bytes,
            row.launch.name(),
            row.outcome.word(),
            row.calls,
            us.unwrap_or_default(),
            row.notes.join("; "),
            detail.unwrap_or_else(|| match row.outcome.is_intact() {
                true => String::new(),
                false => format!("{:?}", row.outcome),
            }),
        );
    });
    println!("{:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}
