//! The histogram of a tensor's values.

use super::event::Histogram;

/// Number of equal intervals from the smallest value to the largest, as in `tf.summary.histogram`.
const BUCKETS: usize = 30;

/// The histogram of the finite `numbers`; `None` if there are none.
pub(super) fn of(numbers: &[f32]) -> Option<Histogram> {
    let finite = || numbers.iter().filter(|number| number.is_finite()).map(|&number| f64::from(number));
    let (mut num, mut sum, mut sum_squares) = (0.0, 0.0, 0.0);
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for number in finite() {
        num += 1.0;
        sum += number;
        sum_squares += number * number;
        min = min.min(number);
        max = max.max(number);
    }
    if num == 0.0 {
        return None;
    }
    let width = (max - min) / BUCKETS as f64;
    if width == 0.0 {
        let (bucket_limit, bucket) = (vec![max], vec![num]);
        return Some(Histogram { min, max, num, sum, sum_squares, bucket_limit, bucket });
    }
    let mut bucket = vec![0.0; BUCKETS];
    for number in finite() {
        // Rounding may put the largest value past the last bucket.
        bucket[(((number - min) / width) as usize).min(BUCKETS - 1)] += 1.0;
    }
    let mut bucket_limit: Vec<_> = (1..BUCKETS).map(|nth| min + width * nth as f64).collect();
    bucket_limit.push(max);
    Some(Histogram { min, max, num, sum, sum_squares, bucket_limit, bucket })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_its_bucket() {
        let numbers: Vec<f32> = (0..1000_u16).map(|n| (f32::from(n) * 0.37).sin() * 3.0).collect();
        let found = of(&numbers).expect("there are numbers");
        assert_eq!(found.bucket.len(), BUCKETS);
        assert_eq!(found.bucket_limit.len(), BUCKETS);
        assert_eq!((found.num, found.bucket.iter().sum::<f64>()), (1000.0, 1000.0));
        assert_eq!(found.bucket_limit.last(), Some(&found.max));
        let mut below = 0.0;
        for (limit, count) in found.bucket_limit.iter().zip(&found.bucket) {
            below += count;
            let wanted = numbers.iter().filter(|&&number| f64::from(number) < *limit).count() as f64;
            // The largest value is its bucket's limit; others are in the bucket because of rounding.
            assert!((below - wanted).abs() <= 1.0, "{below} below {limit}, {wanted} wanted");
        }
        let sum: f64 = numbers.iter().map(|&number| f64::from(number)).sum();
        let squares: f64 = numbers.iter().map(|&number| f64::from(number).powi(2)).sum();
        assert_eq!((found.sum, found.sum_squares), (sum, squares));
    }

    #[test]
    fn one_distinct_value_has_one_bucket_and_none_has_no_histogram() {
        let found = of(&[0.5, f32::NAN, 0.5, f32::INFINITY]).expect("two numbers");
        assert_eq!((found.min, found.max, found.num), (0.5, 0.5, 2.0));
        assert_eq!((found.bucket_limit, found.bucket), (vec![0.5], vec![2.0]));
        assert_eq!(of(&[f32::NAN]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_widest_range_has_finite_limits() {
        let found = of(&[f32::MIN, 0.0, f32::MAX]).expect("three numbers");
        assert!(found.bucket_limit.is_sorted() && found.bucket_limit.iter().all(|limit| limit.is_finite()));
        assert_eq!((found.bucket[0], found.bucket[BUCKETS - 1]), (1.0, 1.0));
    }
}
