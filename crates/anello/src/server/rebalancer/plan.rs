//! The decision which connections a worker moves, and where.

use std::cmp::Reverse;

/// Maximum number of connections that a worker moves in one interval, because moving one takes about ten system calls.
const MAX_MOVES: usize = 256;

/// Loads of the workers in units of work per second, as one of them sees them.
#[derive(Debug)]
pub(super) struct Loads {
    /// Index and load of each worker.
    pub loads: Vec<(usize, u64)>,
    /// Index of the worker that decides, which is one of them.
    pub worker: usize,
}

impl Loads {
    fn own(&self) -> u64 {
        self.loads.iter().find(|(worker, _)| *worker == self.worker).map_or(0, |(_, load)| *load)
    }

    fn mean(&self) -> u64 {
        self.loads.iter().map(|(_, load)| load).sum::<u64>() / (self.loads.len() as u64).max(1)
    }

    /// Returns whether the worker has more than 1.05 times the mean load, and this is unlikely to be chance: with `work`
    /// independent units in the interval, it is more than two standard deviations above the mean.
    pub fn is_overloaded(&self, work: u64) -> bool {
        let (own, mean) = (self.own(), self.mean());
        let excess = u128::from(own.saturating_sub(mean));
        is_above(own, mean) && excess * excess * u128::from(work) > 4 * u128::from(own) * u128::from(own)
    }

    /// Returns the connections to move, each with its new worker. `connections` has the work of each connection of this
    /// worker in the last interval.
    ///
    /// A move never makes the new worker busier than this one, so connections do not move back and forth.
    pub fn plan(&self, mut connections: Vec<(usize, u64)>) -> Vec<(usize, usize)> {
        let (total, mean) = (self.own(), self.mean());
        let measured = connections.iter().map(|(_, work)| work).sum::<u64>().max(1);
        let mut targets = self.targets();
        let mut own = total;
        let mut moves = Vec::new();
        connections.sort_unstable_by_key(|&(connection, work)| (Reverse(work), connection));
        for (connection, work) in connections {
            let Some((target, target_load)) = targets.iter_mut().min_by_key(|(_, load)| *load) else { break };
            if moves.len() == MAX_MOVES || own <= mean + mean / 64 {
                break;
            }
            let load = portion(total, work, measured);
            // Measured loads vary, hence the margin.
            if *target_load + load <= own.saturating_sub(load) + mean / 32 {
                (own, *target_load) = (own - load, *target_load + load);
                moves.push((connection, *target));
            }
        }
        moves
    }

    /// Returns the workers to which this worker may move connections, and their loads.
    ///
    /// Overloaded workers decide at the same time. Each therefore has other targets, which all workers derive from the
    /// same loads. If there are too few, several share one: its load is raised for each of them, so that each fills its
    /// part of the difference to the mean.
    fn targets(&self) -> Vec<(usize, u64)> {
        let mean = self.mean();
        let mut by_load = self.loads.clone();
        by_load.sort_by_key(|&(worker, load)| (Reverse(load), worker));
        let is_source = |&&(_, load): &&(usize, u64)| is_above(load, mean);
        let sources: Vec<_> = by_load.iter().filter(is_source).copied().collect();
        let mut targets: Vec<_> = by_load.iter().rev().filter(|(_, load)| *load < mean).copied().collect();
        let Some(rank) = sources.iter().position(|(worker, _)| *worker == self.worker) else {
            return Vec::new();
        };
        if sources.len() <= targets.len() {
            return targets.into_iter().skip(rank).step_by(sources.len()).collect();
        }
        if targets.is_empty() {
            return targets;
        }
        let (target, load) = targets.swap_remove(rank % targets.len());
        let sharing = sources.iter().skip(rank % (targets.len() + 1)).step_by(targets.len() + 1);
        let excess: u64 = sharing.map(|(_, load)| load - mean).sum();
        vec![(target, mean - portion(mean - load, self.own() - mean, excess))]
    }
}

fn is_above(load: u64, mean: u64) -> bool {
    load > mean + mean / 20
}

/// Returns `total * part / whole`.
fn portion(total: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(total) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Connections of each worker with their loads, and the number of moves so far.
    struct Cluster {
        workers: Vec<Vec<u64>>,
        moves: usize,
    }

    impl Cluster {
        fn loads(&self) -> Vec<u64> {
            self.workers.iter().map(|connections| connections.iter().sum()).collect()
        }

        /// Returns the load of the busiest worker divided by the mean.
        fn imbalance(&self) -> f64 {
            let loads = self.loads();
            let (max, sum) = (*loads.iter().max().unwrap(), loads.iter().sum::<u64>());
            max as f64 * loads.len() as f64 / sum as f64
        }

        /// Lets all workers decide with the same loads. Measured work deviates by up to `noise` percent.
        fn step(&mut self, random: &mut Rng, noise: u64) {
            let mut vary = |load: u64| load * (100 - noise + random.u64(0..=2 * noise)) / 100;
            let loads: Vec<(usize, u64)> = self.loads().into_iter().map(&mut vary).enumerate().collect();
            let mut moved = Vec::new();
            for worker in 0..self.workers.len() {
                let seen = Loads { loads: loads.clone(), worker };
                if seen.is_overloaded(loads[worker].1) {
                    let measured = self.workers[worker].iter().map(|load| vary(*load)).enumerate().collect();
                    let mut plan = seen.plan(measured);
                    plan.sort_by_key(|&(connection, _)| Reverse(connection));
                    for (connection, target) in plan {
                        assert_ne!(target, worker);
                        moved.push((target, self.workers[worker].swap_remove(connection)));
                    }
                }
            }
            self.moves += moved.len();
            moved.into_iter().for_each(|(target, load)| self.workers[target].push(load));
        }
    }

    /// One connection in ten has 90 % of the load. Connections are placed at random, or all busy ones on one worker.
    fn skewed(workers: usize, connections: usize, is_worst: bool, random: &mut Rng) -> Cluster {
        let mut cluster = Cluster { workers: vec![Vec::new(); workers], moves: 0 };
        for connection in 0..connections {
            let is_busy = connection % 10 == 0;
            let worker = if is_worst && is_busy { 0 } else { random.usize(..workers) };
            cluster.workers[worker].push(if is_busy { 81_000 } else { 1000 });
        }
        cluster
    }

    #[test]
    fn skewed_load_becomes_even_and_stays() {
        for seed in 0..300 {
            let mut random = Rng::with_seed(seed);
            let workers = random.usize(2..9);
            let connections = workers * random.usize(50..600);
            let mut cluster = skewed(workers, connections, random.bool(), &mut random);
            for _ in 0..4 {
                cluster.step(&mut random, 2);
            }
            let imbalance = cluster.imbalance();
            assert!(
                imbalance <= 1.1,
                "seed {seed}: {imbalance} with {connections} connections, {workers} workers"
            );
            for _ in 0..200 {
                cluster.step(&mut random, 2);
                assert!(cluster.imbalance() <= 1.1, "seed {seed}");
            }
            assert!(cluster.moves <= connections, "seed {seed}: {} moves of {connections}", cluster.moves);
        }
    }

    #[test]
    fn no_move_makes_imbalance_worse() {
        for seed in 0..2000 {
            let mut random = Rng::with_seed(seed);
            let mut cluster = Cluster { workers: vec![Vec::new(); random.usize(2..6)], moves: 0 };
            for connections in &mut cluster.workers {
                let count = random.usize(..8);
                connections.extend((0..count).map(|_| 1 << random.u32(6..18)));
            }
            if cluster.loads().iter().sum::<u64>() == 0 {
                continue;
            }
            let mut before = cluster.imbalance();
            for _ in 0..10 {
                let moves = cluster.moves;
                cluster.step(&mut random, 0);
                let after = cluster.imbalance();
                assert!(after <= before + 0.04, "seed {seed}: {before} to {after}");
                before = after;
                if cluster.moves == moves {
                    break;
                }
            }
            let moves = cluster.moves;
            cluster.step(&mut random, 0);
            assert_eq!(cluster.moves, moves, "seed {seed}: still moving connections after 10 steps");
        }
    }

    #[test]
    fn nothing_moves_if_load_is_even_or_on_one_connection() {
        let mut random = Rng::with_seed(1);
        let even = vec![vec![100; 50]; 4];
        let single = vec![vec![100_000], vec![100; 3]];
        let idle = vec![vec![0; 50]; 4];
        let few_units = vec![vec![1, 2], vec![1]];
        for workers in [even, single, idle, few_units, vec![vec![100; 50]]] {
            let mut cluster = Cluster { workers, moves: 0 };
            (0..50).for_each(|_| cluster.step(&mut random, 2));
            assert_eq!(cluster.moves, 0, "{:?}", cluster.workers);
        }
    }

    #[test]
    fn number_of_moves_is_limited() {
        let loads = Loads { loads: vec![(0, 1_000_000), (1, 0)], worker: 0 };
        assert_eq!(loads.plan((0..10_000).map(|connection| (connection, 100)).collect()).len(), MAX_MOVES);
    }
}
