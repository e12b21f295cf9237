module anello/peers/go-uring-echo

go 1.24

require (
	anello/peers/flags v0.0.0
	github.com/godzie44/go-uring v0.0.0-20220926161041-69611e8b13d5
	golang.org/x/sys v0.30.0
)

require github.com/libp2p/go-sockaddr v0.1.1 // indirect

replace anello/peers/flags => ../flags-go
