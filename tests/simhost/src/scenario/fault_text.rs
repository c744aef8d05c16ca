//! Reading faults from their text.
use super::fault::{End, Fault, Kind, Mechanism, Occurrence, Via};
use std::str::FromStr;

const PEER: [Mechanism; 5] = [
    Mechanism::CePush,
    Mechanism::CePull,
    Mechanism::SmLoad,
    Mechanism::SmStore,
    Mechanism::Atomic,
];

fn mechanisms(text: &str) -> Option<Vec<Mechanism>> {
    Some(match text {
        "any" => PEER.to_vec(),
        "ce" => vec![Mechanism::CePush, Mechanism::CePull],
        "sm" => vec![Mechanism::SmLoad, Mechanism::SmStore, Mechanism::Atomic],
        "ce_push" => vec![Mechanism::CePush],
        "ce_pull" => vec![Mechanism::CePull],
        "staged" => vec![Mechanism::Staged],
        "bounce_d2h" => vec![Mechanism::BounceD2h],
        "bounce_h2d" => vec![Mechanism::BounceH2d],
        "sm_load" => vec![Mechanism::SmLoad],
        "sm_store" => vec![Mechanism::SmStore],
        "sm_store4" => vec![Mechanism::SmStore4],
        "sm_store16" => vec![Mechanism::SmStore16],
        "host_load" => vec![Mechanism::HostLoad],
        "host_store" => vec![Mechanism::HostStore],
        "host_atomic" => vec![Mechanism::HostAtomic],
        "atomic" => vec![Mechanism::Atomic],
        "own" => vec![Mechanism::Own],
        "enable" => vec![Mechanism::Enable],
        _ => return None,
    })
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |what: &str| {
            format!("fault `{text}`: {what}; expected SRC>DST:MECHANISM=KIND[:WHEN][:name=value]")
        };
        let (pair, rest) = text.split_once(':').ok_or_else(|| bad("no mechanism"))?;
        let (source, destination) = pair.split_once('>').ok_or_else(|| bad("no pair"))?;
        let ends = End::parse(source)
            .zip(End::parse(destination))
            .ok_or_else(|| bad("an end is neither a number, * nor host"))?;
        let mut words = rest.split(':');
        let (mechanism, kind) = words
            .next()
            .and_then(|w| w.split_once('='))
            .ok_or_else(|| bad("no kind"))?;
        let words_in_front = [
            ("ipc", Via::IPC),
            ("vmm", Via::VMM),
            ("pool", Via::POOL),
            ("plain", Via::NONE),
        ];
        let in_front = words_in_front.into_iter().find_map(|(word, via)| {
            let rest = mechanism.strip_prefix(word)?;
            let name = if rest.is_empty() {
                "any"
            } else {
                rest.strip_prefix('.')?
            };
            Some((Some(via), name))
        });
        let (only, name) = in_front.unwrap_or((None, mechanism));
        let mut mechanisms =
            mechanisms(name).ok_or_else(|| bad(&format!("no mechanism `{name}`")))?;
        let (mut when, mut min_offset, mut min_bytes, mut load) = (Occurrence::Always, 0, 0, 0);
        let mut part = 0..u64::MAX;
        let mut seed = 1;
        let mut numbers: Vec<(&str, f64)> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let number =
                || parse_number(value).ok_or_else(|| bad(&format!("`{word}` needs a number")));
            match key {
                "always" => when = Occurrence::Always,
                "once" | "first" => when = Occurrence::Once,
                "every" if !matches!(kind, "flipped") => when = Occurrence::Every(number()? as u64),
                "nth" => when = Occurrence::Every(number()? as u64),
                "after" => when = Occurrence::After(number()? as u64),
                "at" => when = Occurrence::At(number()?.max(1.0) as u64),
                "random" => {
                    let probability = number()?;
                    if !(0.0..=1.0).contains(&probability) {
                        return Err(bad("a probability lies between 0 and 1"));
                    }
                    when = Occurrence::Random { probability, seed };
                }
                "seed" => {
                    seed = number()? as u64;
                    if let Occurrence::Random { seed: old, .. } = &mut when {
                        *old = seed;
                    }
                }
                "load" => load = number()? as u32,
                "min_offset" => min_offset = number()? as u64,
                "from" => part.start = number()? as u64,
                "until" => part.end = number()? as u64,
                "min_bytes" => min_bytes = number()? as u64,
                "bytes" | "mask" | "every" | "factor" | "code" | "keep" | "hole" | "to" | "us" => {
                    numbers.push((key, number()?))
                }
                _ => return Err(bad(&format!("no option `{word}`"))),
            }
        }
        let option = |key: &str| numbers.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let (kind, allowed): (Kind, &[&str]) = match kind {
            "zeroed" => (Kind::Zeroed, &[]),
            "ones" => (Kind::Ones, &[]),
            "dropped" => (Kind::Dropped, &[]),
            "mirrored" => (Kind::Mirrored, &[]),
            "stale" => (Kind::Stale, &[]),
            "misrouted" => (
                Kind::Misrouted {
                    to: option("to").map(|v| v as usize),
                },
                &["to"],
            ),
            "spilled" => (
                Kind::Spilled {
                    bytes: option("bytes").unwrap_or(64.0) as usize,
                },
                &["bytes"],
            ),
            "shifted" => (
                Kind::Shifted {
                    bytes: option("bytes").unwrap_or(8.0) as usize,
                },
                &["bytes"],
            ),
            "flipped" => (
                Kind::Flipped {
                    mask: option("mask").unwrap_or(16.0) as u8,
                    every: option("every").unwrap_or(4096.0).max(1.0) as usize,
                },
                &["mask", "every"],
            ),
            "partial" => (
                Kind::Partial {
                    keep: option("keep").unwrap_or(4096.0) as usize,
                    hole: option("hole").unwrap_or(0.0) as usize,
                },
                &["keep", "hole"],
            ),
            "slow" => (
                Kind::Slow {
                    factor: option("factor").unwrap_or(10.0).max(1.0),
                },
                &["factor"],
            ),
            "hang" => (Kind::Hang, &[]),
            "stuck" => (Kind::Stuck, &[]),
            "sticky" => (
                Kind::Sticky {
                    code: option("code").unwrap_or(700.0) as u32,
                },
                &["code"],
            ),
            "death" => (Kind::Death, &[]),
            "refusal" => (
                Kind::Refusal {
                    code: option("code").unwrap_or(217.0) as u32,
                },
                &["code"],
            ),
            "late" => (
                Kind::Late {
                    us: option("us").unwrap_or(2000.0) as u64,
                },
                &["us"],
            ),
            "lost_flag" => (Kind::LostFlag, &[]),
            other => return Err(bad(&format!("no kind `{other}`"))),
        };
        if let Some((key, _)) = numbers.iter().find(|(k, _)| !allowed.contains(k)) {
            return Err(bad(&format!("`{key}` means nothing for this kind")));
        }
        if matches!(kind, Kind::Refusal { .. }) {
            if !matches!(name, "any" | "enable") {
                return Err(bad("refusal goes with `enable` or `any`"));
            }
            mechanisms = vec![Mechanism::Enable];
        } else if mechanisms == [Mechanism::Enable]
            && !matches!(
                kind,
                Kind::Death | Kind::Hang | Kind::Stuck | Kind::Sticky { .. }
            )
        {
            return Err(bad("enable can be refused, hang, get stuck, die or poison"));
        }
        if matches!(kind, Kind::Late { .. } | Kind::LostFlag) {
            if matches!(name, "any" | "sm") {
                mechanisms = vec![Mechanism::SmStore];
            } else if !mechanisms.iter().all(|m| m.stores()) {
                return Err(bad(
                    "flags are stores: goes with `sm_store` and `host_store`",
                ));
            }
        }
        Ok(Fault {
            text: text.to_string(),
            source: ends.0,
            destination: ends.1,
            mechanisms,
            only,
            kind,
            when,
            min_offset,
            part,
            min_bytes,
            load,
        })
    }
}

/// A number, decimal or 0x, with an optional Ki or Mi behind it.
fn parse_number(text: &str) -> Option<f64> {
    let (digits, unit) = if let Some(d) = text.strip_suffix("Ki") {
        (d, 1024.0)
    } else if let Some(d) = text.strip_suffix("Mi") {
        (d, 1_048_576.0)
    } else {
        (text, 1.0)
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as f64,
        None => digits
            .parse::<f64>()
            .ok()
            .filter(|v| v.is_finite() && *v >= 0.0)?,
    };
    Some(value * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_documents() {
        let f: Fault = "2>5:ce_push=hang".parse().unwrap();
        assert!(f.concerns(Some(2), Some(5), Mechanism::CePush, Via::NONE));
        assert!(!f.concerns(Some(5), Some(2), Mechanism::CePush, Via::NONE));
        assert!(!f.concerns(Some(2), Some(5), Mechanism::CePull, Via::NONE));
        let f: Fault = "*>*:any=zeroed:nth=3:min_offset=4Mi".parse().unwrap();
        assert_eq!(f.min_offset, 4 << 20);
        assert_eq!(
            (0..6).map(|c| f.strikes(c)).collect::<Vec<_>>(),
            [false, false, true, false, false, true]
        );
        assert!(!f.concerns(Some(1), Some(1), Mechanism::CePush, Via::NONE));
        assert!(!f.concerns(Some(1), Some(2), Mechanism::Staged, Via::NONE));
        let f: Fault = "1>host:bounce_d2h=flipped:every=64:mask=0x81:once"
            .parse()
            .unwrap();
        assert_eq!(
            f.kind,
            Kind::Flipped {
                mask: 0x81,
                every: 64
            }
        );
        assert!(
            f.concerns(Some(1), None, Mechanism::BounceD2h, Via::NONE)
                && f.strikes(0)
                && !f.strikes(1)
        );
        let f: Fault = "0>1:ipc.sm_store=dropped".parse().unwrap();
        assert!(
            !f.concerns(Some(0), Some(1), Mechanism::SmStore, Via::NONE)
                && f.concerns(Some(0), Some(1), Mechanism::SmStore, Via::IPC)
        );
    }

    #[test]
    fn refuses_with_the_reason() {
        for (text, reason) in [
            ("2>5", "no mechanism"),
            ("25:ce=hang", "no pair"),
            ("a>5:ce=hang", "neither"),
            ("0>1:warp=hang", "no mechanism `warp`"),
            ("0>1:ce=melted", "no kind `melted`"),
            ("0>1:ce=hang:bytes=3", "means nothing"),
            ("0>1:ce=hang:sometimes", "no option"),
            ("0>1:ce=refusal", "goes with"),
        ] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
