//! Random orders.

use anello_lab::schedule::Random;

#[test]
fn order_contains_every_index_once() {
    for seed in 0..200 {
        let mut order = Random::new(seed).order(9);
        order.sort_unstable();
        assert_eq!(order, (0..9).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn order_depends_on_seed() {
    assert_eq!(Random::new(7).order(20), Random::new(7).order(20));
    assert_ne!(Random::new(7).order(20), Random::new(8).order(20));
}

#[test]
fn order_is_uniform() {
    let mut random = Random::new(1);
    let mut first = [0u32; 8];
    for _ in 0..8000 {
        first[random.order(8)[0]] += 1;
    }
    assert!(first.iter().all(|&count| (850..1150).contains(&count)), "{first:?}");
}

#[test]
fn every_position_has_its_own_order() {
    let order = |pass, cell| Random::for_position(3, pass, cell).order(20);
    assert_eq!(order(1, Some(2)), order(1, Some(2)));
    let orders = [order(0, None), order(1, None), order(0, Some(0)), order(0, Some(1)), order(1, Some(0))];
    assert!((0..orders.len()).all(|left| (0..left).all(|right| orders[left] != orders[right])));
}

#[test]
fn below_zero_returns_zero_and_unit_is_less_than_one() {
    let mut random = Random::new(3);
    assert_eq!(random.below(0), 0);
    assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
}
