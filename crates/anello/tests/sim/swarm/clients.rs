//! An echo server, and clients that send and receive in random steps.

use super::*;

/// A stream that is aborted on drop if the flag is set.
struct Abortable(Option<TcpStream>, bool);

impl Deref for Abortable {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        self.0.as_ref().unwrap()
    }
}

impl DerefMut for Abortable {
    fn deref_mut(&mut self) -> &mut TcpStream {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Abortable {
    fn drop(&mut self) {
        if self.1 {
            self.0.take().unwrap().abort();
        }
    }
}

/// Sends `data` in chunks of random sizes, then shuts down the write half.
async fn send_all(mut writer: WriteHalf<&TcpStream>, data: &[u8], mut random: Rng) -> io::Result<()> {
    let mut rest = data;
    while !rest.is_empty() {
        let bound = if chance(&mut random, 300) { 20_000 } else { 300 };
        let (chunk, tail) = rest.split_at(rest.len().min(1 + random.usize(..bound)));
        match random.u64(..3) {
            0 => writer.write_all(chunk).await?,
            _ => writer.send(chunk.to_vec()).await?,
        }
        if chance(&mut random, 100) {
            writer.flush().await?;
        }
        rest = tail;
    }
    writer.flush().await?;
    writer.shutdown().await
}

/// Receives until EOF, with `read` and `recv` in random order.
pub async fn receive_all(
    mut reader: ReadHalf<&TcpStream>,
    received: &RefCell<Vec<u8>>,
    mut random: Rng,
) -> io::Result<()> {
    loop {
        let count = if chance(&mut random, 300) {
            let mut buffer = vec![0; 1 + random.usize(..3000)];
            let count = reader.read(&mut buffer).await?;
            received.borrow_mut().extend_from_slice(&buffer[..count]);
            count
        } else {
            let chunk = reader.recv().await?;
            received.borrow_mut().extend_from_slice(chunk.as_deref().unwrap_or_default());
            chunk.map_or(0, |chunk| chunk.len())
        };
        if count == 0 {
            return Ok(());
        }
    }
}

/// Bytes sent and received by a client of the echo server.
#[derive(Debug, Default, PartialEq)]
pub struct Client {
    pub sent: Vec<u8>,
    pub received: RefCell<Vec<u8>>,
    /// True if both directions reached EOF without an error.
    pub whole: Cell<bool>,
}

impl Client {
    /// Asserts that the received bytes are a prefix of the sent bytes.
    pub fn assert_received_prefix(&self) {
        assert!(self.sent.starts_with(&self.received.borrow()), "echoed bytes differ");
    }

    pub fn assert_received_all(&self) {
        assert!(self.whole.get(), "a stream ended early");
        assert!(*self.received.borrow() == self.sent, "echoed bytes differ");
    }

    pub async fn run(self: Rc<Self>, address: SocketAddr, mut random: Rng, aborts: bool) {
        let Ok(stream) = TcpStream::connect(address).await else { return };
        let mut stream = Abortable(Some(stream), aborts);
        let (reader, writer) = stream.split();
        let (sender, receiver) = (Rng::with_seed(random.u64(..)), Rng::with_seed(random.u64(..)));
        let sending = send_all(writer, &self.sent, sender);
        let (sent, received) = join(sending, receive_all(reader, &self.received, receiver)).await;
        self.whole.set(sent.is_ok() && received.is_ok());
    }
}

/// Polls a future in at most `turns` turns, then drops it.
pub async fn drop_after(turns: u64, future: impl Future<Output = ()>) {
    let mut future = pin!(future);
    for _ in 0..turns {
        if poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await.is_ready() {
            return;
        }
        yield_now().await;
    }
}

/// An echo server. Each task is cancelled when the server is dropped.
#[derive(Clone, Default)]
pub struct Server {
    pub tasks: Rc<RefCell<Vec<JoinHandle<()>>>>,
    trace: Trace,
}

impl Server {
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.borrow_mut().push(spawn(task));
    }

    /// Accepts connections and echoes their bytes. Some connections are aborted, at a rate of `abort_rate` per mille.
    pub async fn serve(self, listener: TcpListener, abort_rate: u16, mut random: Rng) {
        loop {
            let Ok(stream) = listener.accept().await else { continue };
            self.spawn(echo_all(stream, chance(&mut random, abort_rate), Rc::clone(&self.trace)));
        }
    }
}

/// Sends all received bytes back until EOF.
async fn echo_all(stream: TcpStream, aborts: bool, trace: Trace) {
    // Aborts on cancellation, because the client may have dropped its stream and both would wait for room to send.
    let mut stream = Abortable(Some(stream), true);
    let note = |count| {
        trace.borrow_mut().push((monotonic_now().as_nanos() as usize, "echoed", count));
    };
    let result: io::Result<()> = async {
        for number in 0.. {
            let Some(chunk) = stream.recv().await? else { break };
            note(chunk.len());
            if number % 3 == 0 { stream.write_all(&chunk).await? } else { stream.send(chunk).await? }
        }
        stream.flush().await?;
        stream.shutdown().await
    }
    .await;
    note(usize::from(result.is_ok()));
    stream.1 = aborts;
}

/// Runs an echo server and a few clients, which send `bytes` bytes in total. With `abandons`, streams and clients are
/// dropped at random times. Returns the clients, the trace of the server and the driver's counters.
pub fn run_echo(sim: SimOptions, bytes: usize, abandons: bool) -> (Vec<Rc<Client>>, Events, DriverMetrics) {
    let bytes = if cfg!(miri) { bytes.div_ceil(100) } else { bytes };
    let mut random = Rng::with_seed(sim.seed ^ 0xec40);
    let options = driver_options(&mut random);
    let abort_rate = if abandons { 300 } else { 0 };
    let server = Server::default();
    let trace = Rc::clone(&server.trace);
    let (clients, metrics) = run_test(sim, options, async move {
        let listener = TcpListener::bind(ANY_PORT).unwrap();
        let address = listener.local_addr().unwrap();
        server.spawn(server.clone().serve(listener, abort_rate, random.fork()));
        let count = 1 + random.usize(..4);
        let (mut clients, mut tasks) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let client =
                Rc::new(Client { sent: pattern(random.u64(..), bytes / count), ..Client::default() });
            clients.push(Rc::clone(&client));
            let running = client.run(address, random.fork(), chance(&mut random, abort_rate));
            let running: Pin<Box<dyn Future<Output = ()>>> = match abandons {
                true => Box::pin(drop_after(random.u64(..500), running)),
                false => Box::pin(running),
            };
            tasks.push(spawn(running));
        }
        for task in tasks {
            task.await.unwrap();
        }
        server.tasks.take().iter().for_each(JoinHandle::abort);
        clients
    });
    (clients, trace.take(), metrics)
}
