//! Plain stores on their way to another device: held back, delivered out of order, all of them by a fence.
use super::engine::lock;
use std::sync::Mutex;

/// Stores under way at most.
const MOST: usize = 128;

struct State {
    under_way: Vec<(u64, Vec<u8>)>,
    /// How many of them touch each place of `places`: most stores meet none, and need not look through all.
    touched: [u8; PLACES],
    random: u64,
}

/// Parts that addresses fall into, `GRAIN` bytes at a time, over and over.
const PLACES: usize = 1024;
const GRAIN: u64 = 16;
// A store touches a place at most once, so that a count fits.
const _: () = assert!(MOST + 1 < u8::MAX as usize);

/// The places that a range touches, each once.
fn places(addr: u64, len: usize) -> impl Iterator<Item = usize> {
    let grains = addr / GRAIN..=(addr + len.max(1) as u64 - 1) / GRAIN;
    grains.take(PLACES).map(|grain| grain as usize % PLACES)
}

/// The stores of one launch that have not arrived.
pub(crate) struct Delayed(Mutex<State>);

fn overlap(a: u64, a_len: usize, b: u64, b_len: usize) -> bool {
    a < b + b_len as u64 && b < a + a_len as u64
}

impl Delayed {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(State {
            under_way: Vec::new(),
            touched: [0; PLACES],
            random: seed | 1,
        }))
    }

    /// Takes a store in. One to the same place goes out first; so does some other, if there are many.
    pub(crate) fn take(&self, addr: u64, data: &[u8], deliver: impl Fn(u64, &[u8])) {
        let mut state = lock(&self.0);
        state.deliver_overlapping(addr, data.len(), &deliver);
        places(addr, data.len()).for_each(|place| state.touched[place] += 1);
        state.under_way.push((addr, data.to_vec()));
        if state.under_way.len() > MOST {
            let (a, d) = state.pick();
            deliver(a, &d);
        }
    }

    /// Delivers what overlaps a range, so that the device sees its own stores and a strong one comes after them.
    pub(crate) fn settle(&self, addr: u64, len: usize, deliver: impl Fn(u64, &[u8])) {
        let mut state = lock(&self.0);
        state.deliver_overlapping(addr, len, &deliver);
    }

    /// Delivers everything, in random order.
    pub(crate) fn flush(&self, deliver: impl Fn(u64, &[u8])) {
        let mut state = lock(&self.0);
        while !state.under_way.is_empty() {
            let (a, d) = state.pick();
            deliver(a, &d);
        }
    }
}

impl State {
    /// Delivers what overlaps a range, oldest first as far as the list knows.
    fn deliver_overlapping(&mut self, addr: u64, len: usize, deliver: &impl Fn(u64, &[u8])) {
        while places(addr, len).any(|place| self.touched[place] > 0)
            && let Some(i) = self
                .under_way
                .iter()
                .position(|(a, d)| overlap(*a, d.len(), addr, len))
        {
            let (a, d) = self.under_way.remove(i);
            self.left(a, d.len());
            deliver(a, &d);
        }
    }

    fn left(&mut self, addr: u64, len: usize) {
        places(addr, len).for_each(|place| self.touched[place] -= 1);
    }

    /// Some store, by a xorshift generator. The list must not be empty.
    fn pick(&mut self) -> (u64, Vec<u8>) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let i = (self.random % self.under_way.len() as u64) as usize;
        let (addr, data) = self.under_way.swap_remove(i);
        self.left(addr, data.len());
        (addr, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn stores_to_one_place_keep_their_order_and_all_arrive() {
        let delayed = Delayed::new(7);
        let memory = RefCell::new(vec![0_u8; 4096]);
        let order = RefCell::new(Vec::new());
        let deliver = |a: u64, d: &[u8]| {
            memory.borrow_mut()[a as usize..a as usize + d.len()].copy_from_slice(d);
            order.borrow_mut().push(a);
        };
        for round in 1..=3 {
            for i in 0..500_u64 {
                delayed.take(i * 8, &[round; 8], deliver);
            }
        }
        assert!(
            memory.borrow()[..4000].iter().any(|&b| b != 3),
            "some are under way"
        );
        delayed.flush(deliver);
        assert!(memory.borrow()[..4000].iter().all(|&b| b == 3));
        assert!(
            order.borrow().windows(2).any(|w| w[0] > w[1]),
            "out of order"
        );
    }
}
