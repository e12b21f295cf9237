module anello/peers/go-net-echo

go 1.24

require anello/peers/flags v0.0.0

require golang.org/x/sys v0.30.0 // indirect

replace anello/peers/flags => ../flags-go
