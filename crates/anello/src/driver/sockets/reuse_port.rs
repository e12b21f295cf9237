//! Groups of listening sockets that share an address (`SO_REUSEPORT`), and the steering of connections to these sockets
//! by a classic BPF program.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Maximum number of instructions in a classic BPF program (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// Opens a TCP socket that listens on an address which other sockets can share. It has the options that all streams use.
pub(crate) fn listen_shared(address: SocketAddr, backlog: u32) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Attaches a program to the group of the listening socket that selects the socket with index `i` for connections whose
/// packets arrive on core `cores[i]` (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5). Connections that arrive on other cores go
/// to the socket with the index of the core modulo the number of sockets.
pub(crate) fn steer_by_core(socket: &impl AsFd, cores: &[usize]) -> io::Result<()> {
    let program = program(cores)?;
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the option takes a `sock_fprog`, whose pointer and length are those of the program.
    unsafe { set(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &filter) }
}

/// Removes the program from the socket's group (`SO_DETACH_REUSEPORT_BPF`, Linux 5.3).
pub(crate) fn stop_steering(socket: &impl AsFd) -> io::Result<()> {
    let unused: libc::c_int = 0;
    // SAFETY: the option takes an integer, which it ignores.
    match unsafe { set(socket, libc::SO_DETACH_REUSEPORT_BPF, &unused) } {
        // No program is attached.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}

/// # Safety
/// The option must take a `T`, and pointers in the value must be valid.
unsafe fn set<T>(socket: &impl AsFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let (socket, value) = (socket.as_fd().as_raw_fd(), std::ptr::from_ref(value).cast());
    // SAFETY: the kernel reads the value, and the memory that it points to, only during the call. The caller guarantees
    // that both are valid.
    let result = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, value, length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the program:
///
/// ```text
/// A = core
/// if A == cores[0] return 0
/// if A == cores[1] return 1
/// ...
/// A %= number of sockets
/// return A
/// ```
fn program(cores: &[usize]) -> io::Result<Vec<libc::sock_filter>> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    if cores.is_empty() {
        return Err(invalid(
            "cannot steer connections: list of cores is empty (pass one core per socket)".into(),
        ));
    }
    let core_number = (libc::SKF_AD_OFF + libc::SKF_AD_CPU).cast_unsigned();
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, core_number)];
    for (index, core) in cores.iter().enumerate() {
        let core = u32::try_from(*core).map_err(|_| invalid(format!("core {core} does not exist")))?;
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, core));
        program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, index as u32));
    }
    program.push(instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, 0, cores.len() as u32));
    program.push(instruction(libc::BPF_RET | libc::BPF_A, 0, 0, 0));
    if program.len() > MAX_INSTRUCTIONS {
        return Err(invalid(format!(
            "cannot steer connections to {} sockets: program too long",
            cores.len()
        )));
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the program for a packet that arrives on the core.
    fn run(program: &[libc::sock_filter], core: u32) -> u32 {
        let (mut accumulator, mut next) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[next];
            next += 1;
            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => accumulator = core,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    next += usize::from(if accumulator == k { jt } else { jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                code if code == libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K => accumulator %= k,
                code if code == libc::BPF_RET | libc::BPF_A => return accumulator,
                code => panic!("unexpected instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn program_selects_socket_of_core() {
        let program = program(&[4, 1, 6]).expect("a valid program");
        assert_eq!([4, 1, 6].map(|core| run(&program, core)), [0, 1, 2]);
        assert_eq!([0, 2, 3, 5, 200].map(|core| run(&program, core)), [0, 2, 0, 2, 2]);
    }

    #[test]
    fn invalid_lists_of_cores_are_rejected() {
        assert!(program(&[]).is_err());
        assert!(program(&[0; 3000]).is_err());
        assert!(program(&[0; 2000]).is_ok());
        #[cfg(target_pointer_width = "64")]
        assert!(program(&[1 << 32]).is_err());
    }
}
