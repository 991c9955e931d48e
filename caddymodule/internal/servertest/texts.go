package servertest

// A client with its port, and a site as a browser may write it.
const (
	Someone = "203.0.113.7:4711"
	Site0   = "http://Example.COM:8080"
)

// The addresses of two clients.
const Office, Visitor = "203.0.113.7", "198.51.100.1"

// Both is two zones that are charged together at /both, and each alone.
const Both = `{
	throttle {
		zone small {
			limit 1 1/h
		}
		zone large {
			limit 5 1/h
		}
	}
}
http:// {
	throttle /small small
	throttle /large large
	throttle /both {
		zone large
		zone small
	}
	respond {http.throttle.zone}
}`

// ThreeZones has a zone by address, one by address and host, and one by an account.
const ThreeZones = `{
	throttle {
		zone pages {
			limit 2 1/h
			block 10m everywhere
		}
		zone hosts {
			key client_ip host
			limit 2 1/h
		}
		zone accounts {
			key header X-Account plain
			limit 2 1/h
		}
	}
}
http:// {
	throttle /pages pages
	throttle /hosts hosts
	throttle /accounts accounts
	respond ok
}`

// EveryReason has a path for every reason to refuse.
const EveryReason = `
	throttle /capacity {
		zone full {
			limit 1 1/d
			SHADOW
		}
	}
	throttle /denied {
		zone denied {
			override 203.0.113.0/24 deny
			limit 1 1/d
			SHADOW
		}
	}
	throttle /oversize {
		zone oversize {
			cost {header.X-Cost}
			limit 1 1/d
			SHADOW
		}
	}
	throttle /missing_key {
		zone keyless {
			key header X-Api-Key missing refuse
			refusal error
			limit 1 1/d
			SHADOW
		}
	}
	respond {http.throttle.reason}
	handle_errors {
		respond {err.status_code}
	}
`

// LikeNginx has nginx's waits for rate=1r/s burst=5.
const LikeNginx = "limit 6 1/s\ndelay"
