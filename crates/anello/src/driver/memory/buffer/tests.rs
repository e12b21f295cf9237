//! Tests of the receive memory.

use super::*;

#[test]
fn dropped_chunk_returns_buffer_to_ring() {
    let pools = Pools::new(BufferRing::new(2, 4, 64));
    let (ring, mut head) = (pools.ring.as_ref().unwrap(), 0);
    let (first, count) = ring.consume(&mut head, b"hello").unwrap();
    let chunk = pools.filled(first, count).unwrap();
    assert_eq!(&chunk[..], b"hello");
    let (second, _) = ring.consume(&mut head, b"x").unwrap();
    assert_ne!(first, second);
    assert_eq!(ring.consume(&mut head, b"y"), None, "both buffers are leased");
    drop(chunk);
    assert_eq!(ring.consume(&mut head, b"z"), Some((first, 1)));
}

#[test]
fn ring_grows_up_to_limit() {
    let pools = Pools::new(BufferRing::new(1, 4, 64));
    let ring = pools.ring.as_ref().unwrap();
    assert!(ring.grow() && ring.grow() && !ring.grow());
    assert_eq!(ring.provided.get(), 4);
    assert!(pools.filled(4, 1).is_none(), "ID was never provided");
    assert!(pools.filled(0, 65).is_none(), "length exceeds buffer size");
}

#[test]
fn ring_shrinks_and_grows_again() {
    let pools = Pools::new(BufferRing::new(2, 16, 8192));
    let (ring, mut head) = (pools.ring.as_ref().unwrap(), 0);
    assert!(ring.grow() && ring.grow() && ring.grow() && ring.has_grown());
    let mut consume = |count| -> Vec<Chunk> {
        let ids = (0..count).map_while(|_| ring.consume(&mut head, b"ciao"));
        ids.map(|(id, length)| pools.filled(id, length).unwrap()).collect()
    };
    let kept = consume(5);
    // The buffers are returned in another order.
    let mut used = consume(5);
    used.swap(0, 3);
    drop(used);
    assert!(!ring.shrink(0, || None) && ring.len() == 16, "unknown head");
    assert_eq!(ring.usage(), RingUsage { filled: 10, in_use: 5 });
    assert!(ring.shrink(9, || Some(10)) && ring.len() == 16, "less than half");
    assert!(ring.shrink(7, || Some(10)));
    assert_eq!((ring.len(), ring.withheld.borrow().len()), (7, 9), "five leased, two provided");
    assert_eq!(ring.usage(), RingUsage { filled: 10, in_use: 5 });
    let mut chunks = consume(16);
    assert_eq!(chunks.len(), 2);
    assert!(ring.grow() && ring.len() == 14 && ring.grow() && ring.len() == 16 && !ring.grow());
    chunks.extend(consume(16));
    assert_eq!(chunks.len(), 11);
    chunks.extend(kept);
    assert!(chunks.iter().all(|chunk| &chunk[..] == b"ciao"));
    let mut ids: Vec<u32> = chunks.iter().map(|chunk| chunk.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, Vec::from_iter(0..16), "each buffer once");
}

#[test]
fn ring_provides_a_buffer_after_it_has_shrunk() {
    let pools = Pools::new(BufferRing::new(1, 16, 64));
    let (ring, mut head) = (pools.ring.as_ref().unwrap(), 0);
    assert!(ring.grow() && ring.grow() && ring.grow() && ring.grow());
    let leased: Vec<Chunk> = (0..5)
        .map(|_| ring.consume(&mut head, b"ciao").unwrap())
        .map(|(id, length)| pools.filled(id, length).unwrap())
        .collect();
    assert!(ring.shrink(0, || Some(5)));
    assert_eq!(ring.len(), 6);
    drop(leased);
    assert!(ring.shrink(0, || Some(5)));
    assert_eq!(ring.len(), 1);
}

#[test]
fn ring_keeps_buffers_that_the_kernel_takes_while_it_shrinks() {
    let pools = Pools::new(BufferRing::new(2, 16, 64));
    let ring = pools.ring.as_ref().unwrap();
    assert!(ring.grow() && ring.grow() && ring.grow());
    let heads = Cell::new(0);
    assert!(ring.shrink(0, || Some(heads.replace(3))));
    assert_eq!((ring.len(), ring.tail.get()), (16, 16));
}

#[test]
fn discarded_memory_reads_as_zeros() {
    let page_bytes = rustix::param::page_size();
    let layout = Layout::from_size_align(4 * page_bytes, page_bytes).unwrap();
    let base = allocate(layout);
    // SAFETY: the accesses are within the allocation, and it is freed with its layout.
    unsafe {
        base.write_bytes(7, layout.size());
        discard(base.add(1), 2 * page_bytes);
        let bytes: Vec<u8> = (0..4).map(|page| base.add(page * page_bytes).read()).collect();
        assert_eq!(bytes, [7, 0, 7, 7]);
        dealloc(base.as_ptr(), layout);
    }
}

#[test]
fn bytes_keep_memory_and_return_buffer_to_ring() {
    let pools = Pools::new(BufferRing::new(2, 2, 64));
    let mut head = 0;
    let mut receive = |data: &[u8]| {
        let ring = pools.ring.as_ref().unwrap();
        let (id, count) = ring.consume(&mut head, data)?;
        let mut chunk = pools.filled(id, count)?;
        chunk.advance(1);
        Some(Bytes::from(chunk))
    };
    let (first, second) = (receive(b"1first").unwrap(), receive(b"2second").unwrap());
    assert_eq!(receive(b"third"), None, "both buffers are leased");
    let clone = first.clone();
    std::thread::spawn(move || assert_eq!(&first[..], b"first")).join().unwrap();
    assert!(!pools.ring.as_ref().unwrap().reclaim(), "a clone exists");
    drop(clone);
    assert!(pools.ring.as_ref().unwrap().reclaim());
    let third = receive(b"3third").unwrap();
    let mut pooled = pools.lease(1);
    pooled.spare()[..4].copy_from_slice(b"pool");
    pooled.mark_filled(4);
    let pooled = Bytes::from(pooled);
    assert!(Bytes::from(pools.lease(0)).is_empty());
    drop(pools);
    let read = move || {
        assert_eq!((&second[..], &third[..], &pooled[..]), (&b"second"[..], &b"third"[..], &b"pool"[..]))
    };
    std::thread::spawn(read).join().unwrap();
}

#[test]
fn pool_reuses_last_released_buffer_first() {
    let pools = Pools::new(None);
    let (first, second) = (pools.lease(0), pools.lease(0));
    let base = second.base;
    drop(first);
    drop(second);
    let mut reused = pools.lease(0);
    assert_eq!(reused.base, base);
    assert_eq!(reused.spare().len(), CLASS_BYTES[0]);
    reused.spare()[..3].copy_from_slice(b"abc");
    reused.mark_filled(3);
    reused.advance(1);
    assert_eq!(&reused[..], b"bc");
    reused.truncate(1);
    assert_eq!((&reused[..], reused.capacity()), (&b"b"[..], CLASS_BYTES[0]));
}

#[test]
fn class_for_returns_smallest_sufficient_class() {
    let classes = [1, 4096, 4097, 65536, 200_000, 1 << 20].map(Pools::class_for);
    assert_eq!(classes, [0, 0, 1, 2, 3, 3]);
}
