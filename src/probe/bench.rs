//! What the kernels and the host link do on one GPU, side by side in one run: `peerproof bench`.

use super::{
    mechanism::StartError,
    seat::{Seat, SeatError},
    transfer::{Setting, limit},
};
use crate::{
    gpu::{DeviceMemory, Event, PinnedMemory},
    model::{
        measurement::{Measurement, Unit},
        report::BenchRow,
    },
    stats,
    words::{Key, Role},
};

/// Share of a device copy's read-plus-write rate that fill and verify must reach.
const TARGET_SHARE: f64 = 0.9;
const WARMUP: u32 = 3;

/// Measures on `seat`: rows are interleaved sample by sample, so that a clock change hits all alike.
pub fn run(setting: &Setting, seat: &Seat, samples: u32) -> Result<Vec<BenchRow>, SeatError> {
    let (free, _) = seat.context.memory_info()?;
    // Well past any L2, and small enough to leave the GPU usable.
    let bytes = (free / 6).min(4 << 30) >> 12 << 12;
    let link_bytes = bytes.min(256 << 20);
    let (one, two) = (
        DeviceMemory::new(&seat.context, bytes)?,
        DeviceMemory::new(&seat.context, bytes)?,
    );
    let results = DeviceMemory::new(&seat.context, 4096)?;
    let host = PinnedMemory::new(&seat.context, link_bytes as usize)?;
    let link = one.region().part(0, link_bytes).ok_or(SeatError::Layout)?;
    let key = Key {
        run: setting.run,
        source: 0,
        destination: 0,
        mechanism: 61,
        attempt: 0,
        role: Role::Own,
    };
    let kernels = seat.kernels()?;
    let stream = &seat.stream;
    let fill = || {
        Ok(kernels
            .fill(stream, one.region(), 0, key)
            .map_err(StartError::from)?)
    };
    let verify = || {
        Ok(kernels
            .verify(stream, one.region(), 0, key, results.region())
            .map_err(StartError::from)?)
    };
    let copy = || Ok(stream.copy(two.region(), one.region())?);
    let kernel_copy = || {
        Ok(kernels
            .copy_store(stream, two.region(), one.region())
            .map_err(StartError::from)?)
    };
    let to_device = || Ok(stream.copy(link, host.region())?);
    let to_host = || Ok(stream.copy(host.region(), link)?);
    type Queue<'a> = &'a dyn Fn() -> Result<(), SeatError>;
    let rows: [(&str, &str, u64, u64, Queue); 6] = [
        ("device copy", "bytes read + written", bytes, 2, &copy),
        ("fill", "bytes written", bytes, 1, &fill),
        ("verify", "bytes read", bytes, 1, &verify),
        (
            "kernel copy",
            "bytes read + written",
            bytes,
            2,
            &kernel_copy,
        ),
        ("host to device", "bytes copied", link_bytes, 1, &to_device),
        ("device to host", "bytes copied", link_bytes, 1, &to_host),
    ];
    let (start, end) = (Event::new(&seat.context)?, Event::new(&seat.context)?);
    let limit = limit(2 * bytes, setting.factor);
    let mut rates: Vec<Vec<f64>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..WARMUP + samples.max(1) {
        for (row, kept) in rows.iter().zip(&mut rates) {
            stream.record(&start)?;
            (row.4)()?;
            stream.record(&end)?;
            stream.wait(limit)?;
            if round >= WARMUP {
                kept.push((row.2 * row.3) as f64 / 1e6 / start.elapsed_ms(&end)?.max(1e-6));
            }
        }
    }
    let copy_rate = rates
        .first()
        .and_then(|samples| stats::median(samples))
        .unwrap_or(0.0);
    let method = "events, rows interleaved sample by sample";
    Ok(rows
        .iter()
        .zip(rates)
        .map(|(row, samples)| BenchRow {
            name: row.0.to_string(),
            counts: row.1.to_string(),
            bytes: row.2,
            rate: Measurement {
                samples,
                unit: Unit::GbPerS,
                warmup: WARMUP,
                method: method.to_string(),
                caveats: Vec::new(),
            },
            target: matches!(row.0, "fill" | "verify").then(|| {
                (
                    TARGET_SHARE * copy_rate,
                    "90% of the device copy's read-plus-write rate in this run".to_string(),
                )
            }),
        })
        .collect())
}
