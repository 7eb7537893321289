//! Measures the two prefix trees of dynamo-kv-router the way bench/table measures
//! ours: `radix` is RadixTree, of one thread; `concurrent` is
//! ConcurrentRadixTreeCompressed behind a pool of one writing thread.
//!
//! usage: dynamo-bench CONVERSATION
//!
//! CONVERSATION is a file of little-endian u64: for each request the endpoint, the
//! first block that it stores, the number of blocks, and for each block the hash
//! of its tokens and the engine's hash. Each line of the output is a name and a
//! figure: nanoseconds of a look-up, million blocks a second, bytes a block.

use std::time::{Duration, Instant};

use dynamo_kv_router::indexer::{KvIndexerInterface, SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};

const CHAIN: u64 = 256;
const EVENT: usize = 16;
const CHAINS: u64 = 3906; // a million blocks
const PASSES: usize = 300;

type Concurrent = ThreadPoolIndexer<ConcurrentRadixTreeCompressed>;

fn mix(mut h: u64) -> u64 {
    h = h.wrapping_add(0x9e3779b97f4a7c15);
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d049bb133111eb);
    h ^ (h >> 31)
}

fn local(chain: u64) -> Vec<LocalBlockHash> {
    (0..CHAIN).map(|i| LocalBlockHash(mix(chain * CHAIN + i))).collect()
}

fn engine(chain: u64) -> Vec<u64> {
    (0..CHAIN).map(|i| mix(!(chain * CHAIN + i))).collect()
}

fn event(worker: u64, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(worker, KvCacheEvent { event_id: 0, dp_rank: 0, data })
}

/// The events that store a chain's blocks from one on.
fn stores(worker: u64, local: &[LocalBlockHash], engine: &[u64], from: usize) -> Vec<RouterEvent> {
    (from..local.len())
        .step_by(EVENT)
        .map(|i| {
            let blocks = (i..(i + EVENT).min(local.len()))
                .map(|j| KvCacheStoredBlockData {
                    block_hash: ExternalSequenceBlockHash(engine[j]),
                    tokens_hash: local[j],
                    mm_extra_info: None,
                })
                .collect();
            let parent_hash = (i > 0).then(|| ExternalSequenceBlockHash(engine[i - 1]));
            event(worker, KvCacheEventData::Stored(KvCacheStoreData { parent_hash, start_position: None, blocks }))
        })
        .collect()
}

/// The events that remove a chain, the last block first.
fn removals(worker: u64, engine: &[u64]) -> Vec<RouterEvent> {
    engine
        .chunks(EVENT)
        .rev()
        .map(|c| {
            let block_hashes = c.iter().rev().map(|&h| ExternalSequenceBlockHash(h)).collect();
            event(worker, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
        })
        .collect()
}

/// The time that a tenth of the runs do not exceed.
fn tenth(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 10]
}

/// Nanoseconds of one look-up: a tenth of the passes over all chains.
fn look_up(chains: &[Vec<LocalBlockHash>], passes: usize, mut find: impl FnMut(Vec<LocalBlockHash>)) -> f64 {
    let times = (0..passes)
        .map(|_| {
            let copies = chains.to_vec();
            let start = Instant::now();
            for c in copies {
                find(c);
            }
            start.elapsed()
        })
        .collect();
    tenth(times).as_nanos() as f64 / chains.len() as f64
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

struct Trees {
    radix: RadixTree,
    concurrent: Concurrent,
    runtime: tokio::runtime::Runtime,
}

impl Trees {
    fn new() -> Self {
        Trees {
            radix: RadixTree::new(),
            concurrent: ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, 16),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        }
    }

    fn apply(&mut self, e: RouterEvent) {
        self.radix.apply_event(e.clone()).unwrap();
        self.runtime.block_on(self.concurrent.apply_event(e));
    }

    fn report(&self, row: &str, chains: &[Vec<LocalBlockHash>], passes: usize) {
        self.runtime.block_on(self.concurrent.flush());
        let radix = look_up(chains, passes, |c| {
            std::hint::black_box(self.radix.find_matches(c, false));
        });
        let concurrent = look_up(chains, passes, |c| {
            std::hint::black_box(self.concurrent.backend().find_matches(&c, false));
        });
        println!("{row}/radix {radix:.0}");
        println!("{row}/concurrent {concurrent:.0}");
    }
}

/// A tree of chains, each on holders of so many endpoints.
fn flat(row: &str, chains: u64, holders: u64, endpoints: u64) -> Trees {
    let mut trees = Trees::new();
    for c in 0..chains {
        let (l, e) = (local(c), engine(c));
        for h in 0..holders {
            for ev in stores((mix(c) + h) % endpoints, &l, &e, 0) {
                trees.apply(ev);
            }
        }
    }
    let asked: Vec<_> = (0..64).map(|i| local(i * chains / 64)).collect();
    trees.report(row, &asked, PASSES);
    trees
}

fn rates(tree: &mut RadixTree) {
    let (mut storing, mut removing) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        for c in 0..200 {
            let events = stores(0, &local(1 << 20 | c), &engine(1 << 20 | c), 0);
            let start = Instant::now();
            for e in events {
                tree.apply_event(e).unwrap();
            }
            storing.push(start.elapsed());
        }
        for c in 0..200 {
            let events = removals(0, &engine(1 << 20 | c));
            let start = Instant::now();
            for e in events {
                tree.apply_event(e).unwrap();
            }
            removing.push(start.elapsed());
        }
    }
    let rate = |t| CHAIN as f64 / tenth(t).as_secs_f64() / 1e6;
    println!("3store/radix {:.2}", rate(storing));
    println!("3remove/radix {:.2}", rate(removing));
}

fn bytes(holders: u64) {
    let before = resident();
    let mut tree = RadixTree::new();
    for c in 0..CHAINS {
        for h in 0..holders {
            for e in stores(h, &local(c), &engine(c), 0) {
                tree.apply_event(e).unwrap();
            }
        }
    }
    println!("4bytes{holders}/radix {:.0}", (resident() - before) / (CHAINS * CHAIN) as f64);
    std::mem::forget(tree);
}

fn conversation(path: &str) {
    let file = std::fs::read(path).unwrap();
    let mut words = file.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap()));
    let mut trees = Trees::new();
    let mut asked = Vec::new();
    while let Some(worker) = words.next() {
        let from = words.next().unwrap() as usize;
        let n = words.next().unwrap();
        let (mut l, mut e) = (Vec::new(), Vec::new());
        for _ in 0..n {
            l.push(LocalBlockHash(words.next().unwrap()));
            e.push(words.next().unwrap());
        }
        for ev in stores(worker, &l, &e, from) {
            trees.apply(ev);
        }
        asked.push(l);
    }
    trees.report("2d", &asked, 60);
}

fn main() {
    bytes(1); // first, while what is freed is not used again
    bytes(4);
    conversation(&std::env::args().nth(1).expect("usage: dynamo-bench CONVERSATION"));
    let mut trees = flat("2a", CHAINS, 4, 32);
    trees.report("2c", &vec![local(1 << 40); 64], PASSES);
    rates(&mut trees.radix);
    drop(trees);
    flat("2b32", 400, 32, 32);
    flat("2b256", 400, 256, 256);
}
