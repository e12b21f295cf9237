module anello/peers/go-http

go 1.24

require anello/peers/flags v0.0.0

require golang.org/x/sys v0.30.0 // indirect

replace anello/peers/flags => ../flags-go
