//! Bytes that a GPU believes to have written to a peer, or to have got from one: what mirrored and stale faults need.
use super::engine::lock;
use std::collections::HashMap;
use std::sync::Mutex;

const PAGE: u64 = 4096;

struct Page {
    known: [bool; PAGE as usize],
    bytes: [u8; PAGE as usize],
    /// What lay there in truth at that moment: a mirror that no longer covers the same truth is stale and not shown.
    under: [u8; PAGE as usize],
}

/// Remembered bytes by address.
#[derive(Default)]
pub(crate) struct Shadow(Mutex<HashMap<u64, Box<Page>>>);

impl Shadow {
    /// Remembers bytes; `under` is what the owner holds there.
    pub(crate) fn put(&self, addr: u64, data: &[u8], under: &[u8]) {
        let mut pages = lock(&self.0);
        for (i, (&b, &u)) in data.iter().zip(under).enumerate() {
            let at = addr + i as u64;
            let page = pages.entry(at / PAGE).or_insert_with(|| {
                Box::new(Page {
                    known: [false; 4096],
                    bytes: [0; 4096],
                    under: [0; 4096],
                })
            });
            let o = (at % PAGE) as usize;
            (page.known[o], page.bytes[o], page.under[o]) = (true, b, u);
        }
    }

    /// Lays remembered bytes over what was read, in units of 16 bytes, where the truth below is still the same.
    pub(crate) fn overlay(&self, addr: u64, data: &mut [u8]) {
        let pages = lock(&self.0);
        if pages.is_empty() {
            return;
        }
        let mut i = 0;
        while i < data.len() {
            let at = addr + i as u64;
            let n = (16 - (at % 16) as usize).min(data.len() - i);
            if let Some(page) = pages.get(&(at / PAGE)) {
                let o = (at % PAGE) as usize;
                let same = (0..n).all(|k| !page.known[o + k] || page.under[o + k] == data[i + k]);
                for k in (0..n).filter(|&k| same && page.known[o + k]) {
                    data[i + k] = page.bytes[o + k];
                }
            }
            i += n;
        }
    }

    /// Remembered bytes at a range, if all of it is known.
    pub(crate) fn get(&self, addr: u64, len: usize) -> Option<Vec<u8>> {
        let pages = lock(&self.0);
        (0..len)
            .map(|i| {
                let at = addr + i as u64;
                let page = pages.get(&(at / PAGE))?;
                let o = (at % PAGE) as usize;
                page.known[o].then_some(page.bytes[o])
            })
            .collect()
    }
}
