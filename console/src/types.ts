// The parts of the gateway's answers that pages use; /openapi.json has all of it.
export interface Broker {
  id: string; address: string; alive: boolean; draining: boolean; version: string; started: string | null; bundles: number[];
  load: number; memory_bytes: number | null; numbers: Record<string, number>; settings: Record<string, string>; trouble: string;
}
export interface Cluster {
  cluster_id: string; version: string; problems: string[];
  brokers: { id: string; address: string; alive: boolean; draining: boolean }[];
  bundles: { bundle: number; owner: string; epoch: number; trouble: string; load: number }[];
}
export interface Lag { group: string; topic: string; records: number; partitions: number; members: number; stuck_s: number }
export interface Topic { name: string; topic_id: number; partitions: number; settings: Record<string, string>; created: string }
export interface TopicDetails extends Topic { owners: { partition: number; bundle: number; owner: string; moving_from: number | null }[] }
export interface Header { key: string; value?: string | null; value_base64?: string | null }
export interface RecordOut {
  topic: string; partition: number; offset: number; headers?: Header[]; tag?: string | null; timestamp?: string | null; timestamp_us?: number;
  key?: string | null; key_base64?: string | null; value?: string | null; value_base64?: string | null;
}
export interface Letter { place: string; origin: string; attempts: number; first_failure_ms: number; error: string; state: string; record: RecordOut }
