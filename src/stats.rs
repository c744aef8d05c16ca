//! Summaries of samples: order statistics and the doubts they raise. Pure; knows nothing of what was measured.
//!
//! No mean is offered: one stalled transfer moves a mean by any amount, and hides in it.

/// Samples in ascending order, without those that are not finite.
fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut kept: Vec<f64> = samples.iter().copied().filter(|s| s.is_finite()).collect();
    kept.sort_by(f64::total_cmp);
    kept
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    if !(0.0..=1.0).contains(&q) {
        return None;
    }
    let place = q * last as f64;
    let below = sorted.get(place.floor() as usize)?;
    let above = sorted.get(place.ceil() as usize)?;
    Some(below + (above - below) * place.fract())
}

/// The `q`-quantile (0 to 1), linear between order statistics (Hyndman and Fan, type 7). `None` without finite samples or
/// for a `q` outside 0 to 1.
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    quantile_of_sorted(&sorted(samples), q)
}

/// The middle sample, or the middle of the two middle ones.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// Median absolute deviation from the median, in the samples' unit and not scaled.
pub fn mad(samples: &[f64]) -> Option<f64> {
    let middle = median(samples)?;
    let deviations: Vec<f64> = sorted(samples).iter().map(|s| (s - middle).abs()).collect();
    median(&deviations)
}

/// Smallest finite sample.
pub fn min(samples: &[f64]) -> Option<f64> {
    sorted(samples).first().copied()
}

/// Largest finite sample.
pub fn max(samples: &[f64]) -> Option<f64> {
    sorted(samples).last().copied()
}

/// (max - min) / median: 0 when all samples agree. `None` without samples or with a median of zero.
pub fn spread(samples: &[f64]) -> Option<f64> {
    let kept = sorted(samples);
    let middle = quantile_of_sorted(&kept, 0.5)?;
    let (low, high) = (kept.first()?, kept.last()?);
    (middle != 0.0).then(|| (high - low) / middle.abs())
}

/// A sample further from the median than this many scaled MADs is called an outlier (Iglewicz and Hoaglin, 3.5).
const OUTLIER_SCORE: f64 = 3.5;
/// Scales a MAD to the standard deviation of a normal distribution.
const MAD_TO_SIGMA: f64 = 1.4826;
/// A spread above this share of the median is worth a remark.
const WIDE_SPREAD: f64 = 0.2;
/// Fewer samples than this say little of a spread.
const FEW_SAMPLES: usize = 5;

/// Positions of the outliers in `samples`, by the modified z-score. Where more than half of the samples are equal the MAD
/// is zero and tells nothing; then none is named.
pub fn outliers(samples: &[f64]) -> Vec<usize> {
    let (Some(middle), Some(deviation)) = (median(samples), mad(samples)) else {
        return Vec::new();
    };
    if deviation == 0.0 {
        return Vec::new();
    }
    let limit = OUTLIER_SCORE * MAD_TO_SIGMA * deviation;
    samples
        .iter()
        .enumerate()
        .filter(|(_, s)| s.is_finite() && (*s - middle).abs() > limit)
        .map(|(i, _)| i)
        .collect()
}

/// Doubts about a list of samples, as sentences for a measurement's caveats; empty when there are none.
pub fn caveats(samples: &[f64]) -> Vec<String> {
    let finite = sorted(samples).len();
    let mut doubts = Vec::new();
    if finite < samples.len() {
        doubts.push(format!(
            "{} of {} samples are not numbers",
            samples.len() - finite,
            samples.len()
        ));
    }
    if finite == 0 {
        doubts.push("no samples".to_string());
        return doubts;
    }
    if finite < FEW_SAMPLES {
        doubts.push(format!("only {finite} samples"));
    }
    let far = outliers(samples);
    match far.as_slice() {
        [] => {}
        [0] => doubts.push("the first sample is an outlier: warm-up may be too short".to_string()),
        many => doubts.push(format!("{} of {finite} samples are outliers", many.len())),
    }
    if let Some(wide) = spread(samples).filter(|s| *s > WIDE_SPREAD) {
        doubts.push(format!(
            "samples spread over {:.0}% of the median",
            wide * 100.0
        ));
    }
    doubts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&samples), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(quantile(&samples, 0.0), Some(1.0));
        assert_eq!(quantile(&samples, 1.0), Some(4.0));
        assert_eq!(quantile(&samples, 0.25), Some(1.75));
        assert_eq!(quantile(&samples, 1.5), None);
        assert_eq!(mad(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]), Some(1.0));
        assert_eq!(spread(&[9.0, 10.0, 11.0]), Some(0.2));
    }

    #[test]
    fn nothing_is_not_zero() {
        assert_eq!(median(&[]), None);
        assert_eq!(mad(&[]), None);
        assert_eq!(min(&[f64::NAN]), None);
        assert_eq!(spread(&[0.0, 0.0]), None);
        assert_eq!(caveats(&[]), ["no samples"]);
    }

    #[test]
    fn a_slow_first_sample_is_named() {
        let mut samples = vec![80.0, 81.0, 79.0, 80.5, 79.5, 80.2, 79.8];
        assert!(caveats(&samples).is_empty());
        samples.insert(0, 20.0);
        assert_eq!(outliers(&samples), [0]);
        let doubts = caveats(&samples);
        assert!(doubts.iter().any(|d| d.contains("first sample")));
        assert!(doubts.iter().any(|d| d.contains("spread")));
    }

    #[test]
    fn equal_samples_have_no_outliers() {
        assert!(outliers(&[5.0, 5.0, 5.0, 5.0, 9.0]).is_empty());
    }

    #[test]
    fn not_a_number_is_left_out_and_said() {
        let doubts = caveats(&[1.0, f64::NAN, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(doubts, ["1 of 6 samples are not numbers"]);
        assert_eq!(max(&[1.0, f64::INFINITY]), Some(1.0));
    }
}
