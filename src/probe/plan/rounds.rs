//! Which pairs run side by side. Knows GPU numbers only.

/// Rounds of a round-robin tournament (circle method): every unordered pair once, each GPU at most once a round.
pub fn tournament(gpus: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let mut circle: Vec<Option<u32>> = gpus.iter().copied().map(Some).collect();
    if circle.len() % 2 == 1 {
        circle.push(None);
    }
    let count = circle.len();
    let mut rounds = Vec::new();
    for _ in 1..count {
        let (front, back) = circle.split_at(count / 2);
        let pairs = front
            .iter()
            .zip(back.iter().rev())
            .filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        rounds.push(pairs.collect());
        if let Some(rest) = circle.get_mut(1..) {
            rest.rotate_right(1);
        }
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tournament_meets_every_pair_once() {
        for count in [2u32, 3, 4, 7, 8, 9, 16] {
            let gpus: Vec<u32> = (0..count).collect();
            let rounds = tournament(&gpus);
            assert_eq!(
                rounds.len() as u32,
                count - 1 + count % 2,
                "rounds grow with N"
            );
            let mut met = std::collections::BTreeSet::new();
            for round in &rounds {
                let mut busy = std::collections::BTreeSet::new();
                for (a, b) in round {
                    assert!(
                        busy.insert(*a) && busy.insert(*b),
                        "a GPU plays twice in a round"
                    );
                    assert!(met.insert((*a.min(b), *a.max(b))));
                }
            }
            assert_eq!(met.len() as u32, count * (count - 1) / 2);
        }
    }
}
