//! Buffers that operations own while they are in flight.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::driver::Memory;
use crate::executor::try_current;

/// Alignment that almost all disks and file systems accept: a page of 4 KiB.
const DIRECT_IO_ALIGNMENT: usize = 4096;

/// A buffer that a read or write owns while it is in flight: `Vec<u8>` or [`AlignedBuf`].
///
/// [`File::read_owned_at`](super::File::read_owned_at) and [`File::write_owned_at`](super::File::write_owned_at) take
/// such a buffer and return it. This trait cannot be implemented by other types.
///
/// ```
/// use anello::fs::{AlignedBuf, OwnedBuf};
///
/// fn zeroed<B: OwnedBuf + From<Vec<u8>>>(length: usize) -> B {
///     vec![0; length].into()
/// }
/// let vector: Vec<u8> = zeroed(3);
/// let aligned: AlignedBuf = zeroed(3);
/// assert_eq!(vector[..], aligned[..]);
/// ```
pub trait OwnedBuf: Sealed {}

/// Conversion from and to the memory of a buffer. Private, so that the trait cannot be implemented elsewhere.
pub trait Sealed: Sized {
    #[doc(hidden)]
    fn into_memory(self) -> Memory;
    #[doc(hidden)]
    fn from_memory(memory: Memory) -> Self;
}

/// Allocates zeroed memory for a read or write. `is_aligned` is set for direct I/O.
pub(super) fn zeroed(length: usize, is_aligned: bool) -> Memory {
    if is_aligned { AlignedBuf::new(length).memory } else { vec![0; length].into_memory() }
}

impl OwnedBuf for Vec<u8> {}

impl Sealed for Vec<u8> {
    fn into_memory(self) -> Memory {
        let length = self.len();
        Memory::new(self, 0, length)
    }

    fn from_memory(memory: Memory) -> Self {
        memory.allocation
    }
}

impl OwnedBuf for AlignedBuf {}

impl Sealed for AlignedBuf {
    fn into_memory(self) -> Memory {
        self.memory
    }

    fn from_memory(memory: Memory) -> Self {
        Self { memory }
    }
}

/// A byte buffer at an aligned address, as required for direct I/O (`O_DIRECT`).
///
/// The length is fixed, and the bytes are initially zero. The default alignment of 4096 bytes suits practically all
/// disks. The offset and the length of a direct read or write must also be multiples of the disk's block size, usually
/// 512 or 4096 bytes. `statx(2)` with `STATX_DIOALIGN` (Linux 6.1) reports the requirements of a file.
///
/// ```
/// use anello::fs::AlignedBuf;
///
/// let mut buffer = AlignedBuf::new(8192);
/// buffer[..5].copy_from_slice(b"ciao\n");
/// assert_eq!(buffer.len(), 8192);
/// assert_eq!(buffer.as_ptr().addr() % 4096, 0);
/// ```
pub struct AlignedBuf {
    /// Longer than the buffer, so that it contains an aligned address. Never reallocated.
    pub(crate) memory: Memory,
}

impl AlignedBuf {
    /// Creates a zeroed buffer of `length` bytes, aligned to 4096 bytes.
    ///
    /// ```
    /// assert_eq!(anello::fs::AlignedBuf::new(512)[..], [0; 512]);
    /// ```
    pub fn new(length: usize) -> Self {
        Self::with_alignment(length, DIRECT_IO_ALIGNMENT)
    }

    /// Creates a zeroed buffer of `length` bytes, aligned to 4096 bytes, and registers it with the ring of the current
    /// runtime.
    ///
    /// On this runtime, [`read_owned_at`](super::File::read_owned_at) and
    /// [`write_owned_at`](super::File::write_owned_at) then use `IORING_OP_READ_FIXED` and `IORING_OP_WRITE_FIXED`
    /// (Linux 5.1), for which the kernel does not pin the buffer's pages each time. With 16 or more operations in flight,
    /// direct I/O with 128 KiB then takes 40 % less CPU time, and with 4 KiB up to 8 % less. Registering takes a system
    /// call, so reuse the buffer.
    ///
    /// The buffer can be used everywhere: on another runtime or thread, and after the runtime has been dropped, it
    /// behaves like an unregistered one. The same applies if it cannot be registered: on a driver other than io_uring,
    /// outside a runtime, before Linux 5.19, if 4096 buffers of the runtime are registered, if the buffer is empty or
    /// longer than 1 GiB, or if `RLIMIT_MEMLOCK` is reached. [`is_registered`](Self::is_registered) returns `false` in
    /// these cases, and [`DriverMetrics::registered_file_operations`](crate::DriverMetrics::registered_file_operations)
    /// counts the operations that used registered memory.
    ///
    /// Registered memory is locked. After the buffer has been dropped, it is unlocked when the runtime starts the next
    /// file operation on the ring, registers the next buffer, or is dropped.
    ///
    /// ```
    /// use anello::fs::{AlignedBuf, File};
    ///
    /// # anello::example! {
    /// # let file = File::from_std(tempfile::tempfile()?);
    /// let mut buffer = AlignedBuf::registered(4096);
    /// for block in 0..10 {
    ///     buffer.fill(block);
    ///     let written;
    ///     (written, buffer) = file.write_owned_at(buffer, u64::from(block) * 4096).await;
    ///     assert_eq!(written?, 4096);
    /// }
    /// # }
    /// ```
    pub fn registered(length: usize) -> Self {
        let mut buffer = Self::new(length);
        if let Some(shared) = try_current()
            && let Ok(mut driver) = shared.driver.try_borrow_mut()
        {
            driver.register_memory(&mut buffer.memory);
        }
        buffer
    }

    /// Returns `true` if the buffer was registered by [`registered`](Self::registered).
    ///
    /// ```
    /// use anello::fs::AlignedBuf;
    ///
    /// assert!(!AlignedBuf::new(4096).is_registered());
    /// // Outside a runtime, there is no ring.
    /// assert!(!AlignedBuf::registered(4096).is_registered());
    /// ```
    pub fn is_registered(&self) -> bool {
        self.memory.is_registered()
    }

    /// Creates a zeroed buffer of `length` bytes, aligned to `alignment` bytes.
    ///
    /// # Panics
    /// Panics if `alignment` is not a power of two.
    ///
    /// ```
    /// let buffer = anello::fs::AlignedBuf::with_alignment(100, 1 << 16);
    /// assert_eq!(buffer.as_ptr().addr() % (1 << 16), 0);
    /// ```
    #[track_caller]
    pub fn with_alignment(length: usize, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two(), "cannot allocate buffer: alignment is not a power of two");
        let allocation = vec![0; length.saturating_add(alignment - 1)];
        let start = allocation.as_ptr().addr().wrapping_neg() & (alignment - 1);
        Self { memory: Memory::new(allocation, start, length) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_slice()
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut_slice()
    }
}

impl From<&[u8]> for AlignedBuf {
    /// Copies the bytes into a buffer aligned to 4096 bytes.
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::new(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

impl From<Vec<u8>> for AlignedBuf {
    /// Copies the bytes into a buffer aligned to 4096 bytes.
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(&bytes[..])
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format_args!("{:p}", self.as_ptr());
        formatter.debug_struct("AlignedBuf").field("address", &address).field("length", &self.len()).finish()
    }
}
