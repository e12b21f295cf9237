//! Assigns the queues of a network interface to the cores of workers.

use crate::doctor::facts::{Interface, Interrupt, Queue};

/// Returns the interrupts of the receive queues, ordered by the number of the queue, or `None` if their names do not
/// contain that number.
pub fn receive_interrupts(interface: &Interface) -> Option<Vec<&Interrupt>> {
    let interrupts = interface.interrupts.iter();
    let mut numbered: Vec<_> = interrupts
        .filter(|interrupt| interrupt.name != interface.name)
        .filter_map(|interrupt| Some((queue_number(&interrupt.name)?, interrupt)))
        .collect();
    numbered.sort_by_key(|(queue, _)| *queue);
    let numbers = numbered.iter().map(|(queue, _)| *queue);
    let is_complete = numbers.eq(interface.receive_queues.iter().map(|queue| queue.number));
    is_complete.then(|| numbered.into_iter().map(|(_, interrupt)| interrupt).collect())
}

/// Returns the number of the receive queue of an interrupt, such as `eth0-TxRx-3`, `virtio2-input.3` or
/// `mlx5_comp3@pci:0000:01:00.0`. `None` for interrupts of transmit queues and for those without a queue.
fn queue_number(name: &str) -> Option<usize> {
    let name = name.split('@').next()?.to_ascii_lowercase();
    let is_transmit = name.contains("output") || name.contains("tx") && !name.contains("rx");
    let other = ["async", "config", "control", "event", "fdir", "mgmnt", "misc"];
    if is_transmit || other.iter().any(|word| name.contains(word)) {
        return None;
    }
    let prefix = name.trim_end_matches(|character: char| character.is_ascii_digit());
    name[prefix.len()..].parse().ok()
}

/// Returns for each of `queues` queues the core of the worker that processes its packets.
pub fn queue_cores(queues: usize, worker_cores: &[usize]) -> Vec<usize> {
    worker_cores.iter().copied().cycle().take(queues).collect()
}

/// Returns a command that directs each interrupt to a core.
pub fn interrupt_command(interrupts: &[&Interrupt], cores: &[usize]) -> String {
    let numbers = interrupts.iter().map(|interrupt| interrupt.number.to_string());
    let cores = cores.iter().map(usize::to_string);
    write_each(cores, "irq", numbers, "/proc/irq/$irq/smp_affinity_list")
}

/// Returns a command that lets each core send on the queue with the number of its worker (transmit packet steering).
/// `None` if this is already set, or cannot be set.
pub fn transmit_command(interface: &Interface, worker_cores: &[usize]) -> Option<String> {
    let queues = &interface.transmit_queues;
    // Worker `i` uses queue `i` modulo the number of queues.
    let wanted = |index: usize| -> Vec<usize> {
        let mut cores: Vec<usize> = worker_cores.iter().copied().skip(index).step_by(queues.len()).collect();
        cores.sort_unstable();
        cores
    };
    let is_set = |(index, queue): (usize, &Queue)| queue.cores.as_ref() == Some(&wanted(index));
    if queues.len() < 2
        || queues.iter().any(|queue| queue.cores.is_none())
        || queues.iter().enumerate().all(is_set)
    {
        return None;
    }
    let masks = (0..queues.len()).map(|index| mask(&wanted(index)));
    let numbers = queues.iter().map(|queue| queue.number.to_string());
    let file = format!("/sys/class/net/{}/queues/tx-$queue/xps_cpus", interface.name);
    Some(write_each(masks, "queue", numbers, &file))
}

/// Returns a shell command that writes the first value to the file of the first item, and so on.
fn write_each(
    values: impl Iterator<Item = String>,
    variable: &str,
    items: impl Iterator<Item = String>,
    file: &str,
) -> String {
    let [values, items] = [values.collect::<Vec<_>>().join(" "), items.collect::<Vec<_>>().join(" ")];
    format!("set -- {values}; for {variable} in {items}; do echo $1 > {file}; shift; done")
}

/// Formats a mask of cores like the kernel: words of 32 bits in hexadecimal, the most significant first.
pub fn mask(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |core| core / 32 + 1);
    let bits = |word: usize| {
        cores.iter().filter(|&&core| core / 32 == word).fold(0_u32, |bits, core| bits | 1 << (core % 32))
    };
    let rest = (0..words - 1).rev().map(|word| format!(",{:08x}", bits(word)));
    format!("{:x}", bits(words - 1)) + &rest.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(names: &[&str], queues: usize) -> Interface {
        let numbers = 30..;
        let interrupts = numbers.zip(names).map(|(number, name)| Interrupt {
            number,
            name: (*name).to_owned(),
            cores: Some(vec![0]),
        });
        let queues: Vec<Queue> = (0..queues).map(|number| Queue { number, cores: Some(vec![]) }).collect();
        Interface {
            name: "eth0".to_owned(),
            interrupts: interrupts.collect(),
            receive_queues: queues.clone(),
            transmit_queues: queues,
            ..Interface::default()
        }
    }

    #[test]
    fn interrupts_of_receive_queues_are_found_by_name() {
        for (names, queues, expected) in [
            (&["eth0", "eth0-TxRx-0", "eth0-TxRx-1"][..], 2, Some(&[31, 32][..])),
            (&["virtio0-config", "virtio0-input.0", "virtio0-output.0"], 1, Some(&[31])),
            (&["i40e-0000:01:00.0:misc", "i40e-eth0-TxRx-1", "i40e-eth0-TxRx-0"], 2, Some(&[32, 31])),
            (&["mlx5_async0@pci:01", "mlx5_comp0@pci:01", "mlx5_comp1@pci:01"], 2, Some(&[31, 32])),
            (&["ena-mgmnt@pci:05", "eth0-Tx-Rx-0", "eth0-Tx-Rx-1"], 2, Some(&[31, 32])),
            (&["eth0-rx-0", "eth0-tx-0", "eth0-event-2"], 1, Some(&[30])),
            // Transmit and receive queues are numbered together.
            (&["gve-ntfy-blk0@pci:04", "gve-ntfy-blk1@pci:04"], 1, None),
            (&["eth0"], 1, None),
            (&[], 1, None),
        ] {
            let interface = interface(names, queues);
            let found = receive_interrupts(&interface);
            let numbers =
                found.map(|found| found.iter().map(|interrupt| interrupt.number).collect::<Vec<_>>());
            assert_eq!(numbers.as_deref(), expected, "{names:?}");
        }
    }

    #[test]
    fn commands_assign_queues_to_workers() {
        let mut two_queues = interface(&["eth0-TxRx-0", "eth0-TxRx-1"], 2);
        let interrupts = receive_interrupts(&two_queues).unwrap();
        let expected =
            "set -- 0 2; for irq in 30 31; do echo $1 > /proc/irq/$irq/smp_affinity_list; shift; done";
        assert_eq!(interrupt_command(&interrupts, &queue_cores(2, &[0, 2, 1])), expected);
        assert_eq!(queue_cores(3, &[0, 2]), [0, 2, 0]);
        let expected = "set -- 3 4; for queue in 0 1; do echo $1 > /sys/class/net/eth0/queues/tx-$queue/xps_cpus; shift; done";
        assert_eq!(transmit_command(&two_queues, &[0, 2, 1]).as_deref(), Some(expected));
        let cores = [Some(vec![0, 1]), Some(vec![2])];
        two_queues.transmit_queues.iter_mut().zip(cores).for_each(|(queue, cores)| queue.cores = cores);
        assert_eq!(transmit_command(&two_queues, &[0, 2, 1]), None, "already set");
        two_queues.transmit_queues[1].cores = None;
        assert_eq!(transmit_command(&two_queues, &[0, 2]), None, "not readable");
    }

    #[test]
    fn masks_have_words_of_32_bits() {
        for (cores, expected) in [
            (&[][..], "0"),
            (&[0, 2], "5"),
            (&[31], "80000000"),
            (&[33, 0], "2,00000001"),
            (&[64], "1,00000000,00000000"),
        ] {
            assert_eq!(mask(cores), expected);
        }
    }
}
